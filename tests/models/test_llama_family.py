"""Tiny random models of every supported architecture against transformers' logits."""

from pathlib import Path

import pytest
import torch
import transformers

from pelton.layers.context import LayerContext
from pelton.layers.scratch import Scratch
from pelton.models import build_model
from pelton.runner.batch import BatchBuilder
from pelton.runner.kv_cache import allocate_layers
from pelton.runner.state import RequestState
from pelton.types import NewRequest, Plan, Row, SamplingParams
from pelton.weights.checkpoint import open_checkpoint
from pelton.weights.load import load_weights
from pelton.weights.model_files import ModelFiles

PAGE_SIZE = 16
NUM_TOKENS = 75
CPU = torch.device("cpu")
SIZES = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 500000.0,
}
CONFIGS = {
    "llama": transformers.LlamaConfig(**SIZES),
    "llama-tied": transformers.LlamaConfig(**SIZES, tie_word_embeddings=True),
    "llama-biases": transformers.LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "llama-no-gqa": transformers.LlamaConfig(**{**SIZES, "num_key_value_heads": 4}),
    "llama3-rope": transformers.LlamaConfig(**SIZES, rope_parameters=LLAMA3_ROPE),
    "linear-rope": transformers.LlamaConfig(
        **SIZES, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    ),
    "mistral": transformers.MistralConfig(**SIZES, sliding_window=None),
    "mistral-window": transformers.MistralConfig(**SIZES, sliding_window=20),
    "mistral-head-dim": transformers.MistralConfig(**SIZES, head_dim=32, sliding_window=None),
    "qwen2": transformers.Qwen2Config(**SIZES),
    "qwen2-tied": transformers.Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen2-mixed-window": transformers.Qwen2Config(
        **SIZES, use_sliding_window=True, sliding_window=20, max_window_layers=1
    ),
    "qwen3-mixed-window": transformers.Qwen3Config(
        **SIZES,
        use_sliding_window=True,
        sliding_window=20,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "qwen3": transformers.Qwen3Config(**SIZES, head_dim=32),
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


def save_random(name: str, directory: Path) -> tuple[Path, torch.nn.Module]:
    """A checkpoint of random weights on disk, and transformers' model of it."""
    torch.manual_seed(sum(map(ord, name)))
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name], attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():  # default initialization is too even to tell projections apart
            parameter.copy_(
                torch.randn_like(parameter) * (0.15 if parameter.dim() > 1 else 0.5) + (parameter.dim() == 1)
            )
    path = directory / name
    model.eval().save_pretrained(path)
    return path, model


def pelton_logits(path: Path, token_ids: list[int], chunks: list[int]) -> torch.Tensor:
    """[T, V]: the prompt in chunks, its pages in shuffled order, beside a row that must not matter."""
    info = ModelFiles(path).info()
    model = build_model(info, LayerContext(torch.float32, CPU, info.max_position_embeddings, Scratch(CPU)))
    load_weights(model, open_checkpoint(path, dtype=torch.float32), model.tied_names)
    kv = allocate_layers(info, 32, PAGE_SIZE, torch.float32, CPU)
    params = SamplingParams()
    states = {
        1: RequestState(NewRequest(1, tuple(token_ids), params)),
        2: RequestState(NewRequest(2, tuple(range(3, 20)), params)),
    }
    pages = (7, 2, 11, 5, 9)
    logits: list[torch.Tensor] = []
    builder = BatchBuilder(PAGE_SIZE, CPU)
    start = 0
    for chunk in chunks:
        neighbour = Row(2, 0, 17, (20, 21), sample=False)
        plan = Plan((neighbour, Row(1, start, chunk, pages, sample=True)))
        with torch.inference_mode():
            stream = model(builder.build(plan, states), kv)
            logits.append(model.logits(stream, torch.arange(17, 17 + chunk)).clone())
        start += chunk
    return torch.cat(logits)


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_transformers(name: str, directory: Path) -> None:
    path, reference = save_random(name, directory)
    generator = torch.Generator().manual_seed(1)
    token_ids = torch.randint(3, SIZES["vocab_size"], (NUM_TOKENS,), generator=generator)
    with torch.inference_mode():
        expected = reference(token_ids[None]).logits[0]
    assert expected.std() > 0.1
    for chunks in ([NUM_TOKENS], [1] * NUM_TOKENS, [30, 1, 1, 40, 3]):
        actual = pelton_logits(path, token_ids.tolist(), chunks)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
