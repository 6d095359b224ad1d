"""Answers out of the prefix cache are the cold ones, whatever happened to the requests that filled it.

Reported: wrong text after aborted requests, after evictions, and where a whole prompt is cached
(vllm#5543, vllm#42699, vllm#48435).
"""

import random
from pathlib import Path

import pytest

from pelton.config import EngineConfig
from pelton.engine.build import build_engine
from pelton.engine.describe import describe
from pelton.engine.engine import Engine
from pelton.types import SamplingParams
from tiny_model import save_tiny_model

PAGE = 16
NUM_TOKENS = 6
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prefixes")
    save_tiny_model(folder)
    return folder


def engine_of(folder: Path, *, caching: bool = True) -> Engine:
    config = EngineConfig(
        model=str(folder),
        max_model_len=256,
        kv_cache_memory=40 * PAGE * 512,  # 40 pages of the tiny model in bfloat16, 20 in float32
        num_threads=1,
        max_num_batched_tokens=48,
        enable_prefix_caching=caching,
    )
    description = describe(config)
    return build_engine(description.config, description.info, description.path)


def prompts() -> list[list[int]]:
    """Twenty, most of them with a beginning of another one; some of whole pages, so that all of one can be cached."""
    rng = random.Random(8)
    made: list[list[int]] = []
    for index in range(20):
        shared = rng.choice(made)[: rng.randrange(0, 120)] if made and index % 4 else []
        length = rng.choice([PAGE, 2 * PAGE, rng.randrange(1, 60)])
        made.append((shared + [rng.randrange(256) for _ in range(length)])[:150])
    return made


def answer(engine: Engine, request_id: int, prompt: list[int]) -> tuple[list[int], int]:
    """(output ids, prompt tokens out of the cache), alone in the engine."""
    assert engine.add(request_id, prompt, GREEDY) is None
    tokens: list[int] = []
    num_cached = 0
    while engine.has_work:
        for output in engine.step():
            assert output.error is None
            if output.request_id == request_id:
                tokens += output.token_ids
                num_cached = output.num_cached_tokens
    return tokens, num_cached


def disturb(engine: Engine, chosen: list[list[int]], rng: random.Random) -> None:
    """Requests with shared beginnings, of which many are aborted in the middle of their prompt or their output."""
    ids = range(5000, 5040)
    for request_id in ids:
        beginning = rng.choice(chosen)[: rng.randrange(1, 150)]
        prompt = beginning + [rng.randrange(256) for _ in range(rng.randrange(0, 40))]
        params = SamplingParams(temperature=1.0, seed=request_id, max_tokens=40, stop_token_ids=tuple(range(0, 60)))
        engine.add(request_id, prompt, params)
    victims = list(ids)
    rng.shuffle(victims)
    while engine.has_work:
        if victims and rng.random() < 0.7:
            engine.abort(victims.pop())
        engine.step()


def test_lif_06_warm_answers_are_the_cold_ones(folder: Path):
    chosen = prompts()
    cold_engine = engine_of(folder, caching=False)
    cold = [answer(cold_engine, index, prompt)[0] for index, prompt in enumerate(chosen)]
    engine = engine_of(folder)
    rng = random.Random(9)
    num_hits = 0
    for _ in range(3):
        for index, prompt in enumerate(chosen):
            tokens, num_cached = answer(engine, index, prompt)
            assert tokens == cold[index]
            assert num_cached < len(prompt)
            again, num_cached = answer(
                engine, index, prompt
            )  # all full pages are cached now; one token at least is computed
            assert again == cold[index]
            assert num_cached == min(len(prompt) // PAGE * PAGE, len(prompt) - 1)
            num_hits += num_cached
        disturb(engine, chosen, rng)
    assert num_hits > 1000
    assert engine.stats.num_used_pages == 0


def test_lif_06_another_salt_shares_nothing(folder: Path):
    engine = engine_of(folder)
    prompt = prompts()[0] * 3
    answer(engine, 1, prompt)
    engine.add(2, prompt, GREEDY, salt="another tenant")
    outputs = [output for _ in range(50) if engine.has_work for output in engine.step()]
    assert {output.num_cached_tokens for output in outputs} == {0}
