"""However a prompt is cut into chunks, the answer is the same, bit by bit, and nothing is sampled before the last one.

Reported: other texts with chunked prefill, tokens sampled from a chunk in the middle (vllm#7753, vllm#14069,
NVIDIA/TensorRT-LLM#2983).
"""

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from pelton.config import EngineConfig
from pelton.engine.build import build_engine
from pelton.engine.describe import describe
from pelton.engine.engine import Engine
from pelton.types import SamplingParams, TokenLogprobs
from tiny_model import save_tiny_model

PAGE, CHUNK = 16, 64
LENGTHS = [1, PAGE - 1, PAGE, PAGE + 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7]
WHOLE = 512  # more than all prompts together: none is cut

Answer = tuple[list[int], list[TokenLogprobs]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chunks")
    save_tiny_model(folder)
    return folder


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(4)
    return [torch.randint(0, 256, (length,), generator=generator).tolist() for length in LENGTHS]


def engine_of(folder: Path, chunk: int, *, caching: bool) -> Engine:
    config = EngineConfig(
        model=str(folder),
        kv_cache_memory=8 * 2**20,
        num_threads=1,
        max_num_batched_tokens=chunk,
        enable_prefix_caching=caching,
    )
    description = describe(config)
    return build_engine(description.config, description.info, description.path)


def run(engine: Engine, prompts: Sequence[Sequence[int]], *, neighbours: int = 0) -> list[Answer]:
    """Greedy answers of all prompts; `neighbours` decode beside them from the start to the end."""
    ids = itertools.count(1000)
    for index in range(neighbours):
        engine.add(next(ids), [index + 1], SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True))
    for _ in range(3 if neighbours else 0):
        engine.step()
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=3)
    answers: list[Answer] = []
    for index, prompt in enumerate(prompts):
        assert engine.add(index, prompt, params) is None
        answers.append(([], []))
    while any(len(tokens) < 6 for tokens, _ in answers):
        for output in engine.step():
            if output.request_id < len(prompts):
                answers[output.request_id][0].extend(output.token_ids)
                answers[output.request_id][1].extend(output.logprobs or ())
    return answers


@pytest.fixture(scope="module")
def expected(folder: Path, prompts: list[list[int]]) -> list[Answer]:
    engine = engine_of(folder, WHOLE, caching=False)
    return [run(engine, [prompt])[0] for prompt in prompts]


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("neighbours", [0, 5])
@pytest.mark.parametrize("chunk", [16, CHUNK, WHOLE])
def test_lif_05_text_and_logprobs_are_those_of_the_uncut_prompt(
    folder: Path, prompts: list[list[int]], expected: list[Answer], chunk: int, neighbours: int, caching: bool
):
    engine = engine_of(folder, chunk, caching=caching)
    assert run(engine, prompts, neighbours=neighbours) == expected
    if caching and not neighbours:
        assert run(engine, prompts) == expected
        assert engine.stats.prefix_cache_hits > 0


def test_lif_05_nothing_is_sampled_before_the_last_chunk(folder: Path, prompts: list[list[int]]):
    engine = engine_of(folder, 16, caching=False)
    engine.add(0, prompts[-1], SamplingParams(temperature=0.0, max_tokens=1))
    num_steps = 0
    while engine.has_work:
        outputs = [output for output in engine.step() if output.token_ids]
        num_steps += 1
        assert bool(outputs) == (num_steps == -(-LENGTHS[-1] // 16))
