"""Answers across the edge of a sliding window equal the reference's, in chunks and out of the prefix cache.

Reported: garbage once a prompt passes the window, and prompts that are computed anew every time although they are
cached (NVIDIA/TensorRT-LLM#2983, huggingface/transformers#37574, EricLBuehler/mistral.rs#246, vllm#48435,
llama.cpp#14157). Pages behind the window are kept: a window saves work, not yet memory.
"""

from pathlib import Path

import pytest
import torch
import transformers

from models.test_llama_family import pelton_logits
from pelton.config import EngineConfig
from pelton.engine.build import build_engine
from pelton.engine.describe import describe
from pelton.engine.engine import Engine
from pelton.types import SamplingParams
from tiny_model import SIZES, save_tiny_model

WINDOW = 40
LENGTHS = [WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW]
MODEL_SIZES = {**SIZES, "max_position_embeddings": 256}


def prompt(length: int, seed: int = 1) -> list[int]:
    return torch.randint(0, 256, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


CONFIGS = {
    "all layers": transformers.MistralConfig(**MODEL_SIZES, sliding_window=WINDOW),
    "every other layer": transformers.Qwen2Config(
        **MODEL_SIZES,
        use_sliding_window=True,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention"],
    ),
}


@pytest.fixture(scope="module", params=CONFIGS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.nn.Module]:
    folder = tmp_path_factory.mktemp("window")
    return folder, save_tiny_model(folder, CONFIGS[request.param])


@pytest.fixture
def engine(model: tuple[Path, torch.nn.Module]) -> Engine:
    config = EngineConfig(model=str(model[0]), dtype="float32", kv_cache_memory=4 * 2**20, num_threads=1)
    description = describe(config)
    return build_engine(description.config, description.info, description.path)


def greedy(engine: Engine, token_ids: list[int], request_id: int, num_tokens: int = 8) -> tuple[list[int], int]:
    """(output ids, prompt tokens out of the cache)."""
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    assert engine.add(request_id, token_ids, params) is None
    outputs = [output for _ in range(200) if engine.has_work for output in engine.step()]
    return [token for output in outputs for token in output.token_ids], outputs[-1].num_cached_tokens


@pytest.mark.parametrize("length", LENGTHS)
def test_mod_05_logits_equal_the_reference_in_any_chunks(model: tuple[Path, torch.nn.Module], length: int):
    folder, reference = model
    total = min(length + 6, 5 * 16)  # prefilled, then a few tokens one by one
    token_ids = prompt(total)
    with torch.inference_mode():
        expected = reference(torch.tensor([token_ids])).logits[0]
    edge = min(WINDOW - 3, total - 6)
    for chunks in ([total], [total - 6, *[1] * 6], [edge, 5, total - edge - 5]):
        torch.testing.assert_close(pelton_logits(folder, token_ids, chunks), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("length", LENGTHS)
def test_mod_05_the_reference_s_continuation_and_the_same_from_the_cache(
    model: tuple[Path, torch.nn.Module], engine: Engine, length: int
):
    token_ids = prompt(length)
    cold, num_cached = greedy(engine, token_ids, 1)
    assert num_cached == 0
    with torch.inference_mode():
        logits = model[1](torch.tensor([token_ids + cold])).logits[0]
    assert logits[length - 1 : -1].argmax(-1).tolist() == cold
    warm, num_cached = greedy(engine, token_ids, 2)
    assert warm == cold
    assert num_cached == (length - 1) // 16 * 16, "a repeated prompt is a hit up to its last page"


def test_mod_05_three_sessions_share_a_system_prompt(engine: Engine):
    system = prompt(2 * WINDOW)
    turns = [system + prompt(20, seed) for seed in (2, 3, 4)]
    cold = [greedy(engine, turn, index)[0] for index, turn in enumerate(turns)]
    for number, turn in enumerate(turns):
        warm, num_cached = greedy(engine, turn, 10 + number)
        assert warm == cold[number]
        assert num_cached >= 2 * WINDOW
