"""Requests that do not fit into the cache together are preempted, and answer as if they had been alone.

Reported: repeated or lost tokens, other samples and forgotten penalties once a request is computed anew
(vllm#16832, vllm#8219).
"""

from pathlib import Path

import pytest

from pelton.config import EngineConfig
from pelton.engine.build import build_engine
from pelton.engine.describe import describe
from pelton.engine.engine import Engine
from pelton.types import Output, SamplingParams
from tiny_model import save_tiny_model

LENGTH = 200
PARAMS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=LENGTH, ignore_eos=True),
    "seeded": SamplingParams(temperature=1.0, seed=3, max_tokens=LENGTH, ignore_eos=True),
    "penalties": SamplingParams(
        temperature=0.0,
        max_tokens=LENGTH,
        ignore_eos=True,
        repetition_penalty=1.3,
        frequency_penalty=0.5,
        presence_penalty=0.5,
    ),
    "logprobs": SamplingParams(temperature=0.0, max_tokens=LENGTH, ignore_eos=True, logprobs=3),
}
PROMPTS = [[10, 20, 30, index] for index in range(4)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("preempted")
    save_tiny_model(folder)
    return folder


def engine_of(folder: Path, num_tokens: int) -> Engine:
    """With a cache of `num_tokens`: 2 layers of keys and values, 2 heads of 16 float32 numbers each."""
    config = EngineConfig(
        model=str(folder), dtype="float32", max_model_len=256, kv_cache_memory=num_tokens * 512, num_threads=1
    )
    description = describe(config)
    return build_engine(description.config, description.info, description.path)


def run(engine: Engine, prompts: list[list[int]], params: SamplingParams) -> list[list[Output]]:
    for index, prompt in enumerate(prompts):
        assert engine.add(index, prompt, params) is None
    outputs: list[list[Output]] = [[] for _ in prompts]
    while engine.has_work:
        for output in engine.step():
            outputs[output.request_id].append(output)
    return outputs


def tokens_and_logprobs(outputs: list[Output]) -> tuple[list[int], list[object]]:
    tokens = [token for output in outputs for token in output.token_ids]
    return tokens, [entry for output in outputs for entry in output.logprobs or ()]


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
def test_lif_02_preempted_answers_are_those_of_requests_alone(folder: Path, params: SamplingParams):
    roomy = engine_of(folder, 8192)
    alone = [tokens_and_logprobs(run(roomy, [prompt], params)[0]) for prompt in PROMPTS]
    small = engine_of(folder, 384)
    together = run(small, PROMPTS, params)
    assert small.stats.num_preemptions > 0
    assert [tokens_and_logprobs(outputs) for outputs in together] == alone
    assert all(outputs[-1].finish_reason == "length" for outputs in together)
    assert small.stats.num_used_pages == 0
