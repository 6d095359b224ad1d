"""Rotary tables against transformers' own initialization of the frequencies."""

import dataclasses

import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from pelton.layers.rope import inverse_frequencies, rotary_table, scale_frequencies
from pelton.model_config import ModelInfo

CPU = torch.device("cpu")
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_theta": 500000.0,
}
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}


def info(rope: dict[str, object]) -> ModelInfo:
    config = transformers.LlamaConfig(hidden_size=256, num_attention_heads=4, rope_parameters=rope)
    return ModelInfo.from_hf({**config.to_dict(), "architectures": ["LlamaForCausalLM"]})


@pytest.mark.parametrize("rope", [LLAMA3, LINEAR], ids=["llama3", "linear"])
def test_frequencies_equal_transformers(rope: dict[str, object]) -> None:
    config = transformers.LlamaConfig(hidden_size=256, num_attention_heads=4, rope_parameters=rope)
    expected, _ = ROPE_INIT_FUNCTIONS[str(rope["rope_type"])](config, CPU)
    table = rotary_table(info(rope), 100, CPU)
    angles = torch.outer(torch.arange(100, dtype=torch.float32), expected)
    torch.testing.assert_close(table, torch.cat([angles.cos(), angles.sin()], dim=-1), rtol=1e-6, atol=1e-6)


def test_frequency_factors_stand_for_the_scaling_they_were_made_from() -> None:
    scaled = info(LLAMA3)
    plain = inverse_frequencies(scaled.head_dim, scaled.rope_theta)
    factors = (plain / scale_frequencies(plain, scaled.rope_scaling)).tolist()
    as_gguf = dataclasses.replace(scaled, rope_scaling=None, extra={"rope_freq_factors": factors})
    torch.testing.assert_close(rotary_table(as_gguf, 64, CPU), rotary_table(scaled, 64, CPU), rtol=1e-5, atol=1e-5)


def test_an_unknown_scaling_is_refused() -> None:
    with pytest.raises(ValueError, match="'yarn' is not supported"):
        scale_frequencies(inverse_frequencies(64, 10000.0), {"rope_type": "yarn", "factor": 2.0})
