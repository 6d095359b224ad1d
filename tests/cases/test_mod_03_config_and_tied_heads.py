"""A field that config.json leaves out has transformers' default or is named in an error; the head is never guessed.

Reported: a wrong default for a missing field, which shows as nonsense, an output head left random or tied in silence
(vllm#5621, vllm#6758, vllm#53019, QwenLM/Qwen3-VL-Embedding#89, sglang#1508, sglang#15398).
"""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers

from models.test_llama_family import pelton_logits
from pelton.weights.model_files import ModelFiles
from tiny_model import SIZES, save_tiny_model

TOKENS = [3, 40, 7, 200, 31, 5, 90, 12, 8, 77]


def edit(folder: Path, **changes: Any) -> None:
    """Change fields of config.json; None takes one out."""
    file = folder / "config.json"
    config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))


def change_tensors(folder: Path, **changes: torch.Tensor | None) -> None:
    file = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(file) | {name.replace("__", "."): value for name, value in changes.items()}
    kept = {name: value.contiguous() for name, value in tensors.items() if value is not None}
    safetensors.torch.save_file(kept, file, metadata={"format": "pt"})


def reference_logits(folder: Path) -> torch.Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        return model(torch.tensor([TOKENS])).logits[0]


def assert_equal_to_reference(folder: Path) -> None:
    expected = reference_logits(folder)
    assert expected.std() > 0.1
    actual = pelton_logits(folder, TOKENS, [len(TOKENS)])
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "field",
    [
        *("architectures", "head_dim", "rms_norm_eps", "eos_token_id", "dtype", "torch_dtype", "tie_word_embeddings"),
        *("rope_parameters", "rope_theta", "hidden_act", "attention_bias", "mlp_bias"),
    ],
)
def test_mod_03_a_missing_field_has_the_reference_s_default(tmp_path: Path, field: str):
    save_tiny_model(tmp_path, transformers.LlamaConfig(**SIZES, rms_norm_eps=1e-6))
    edit(tmp_path, **{field: None})
    assert_equal_to_reference(tmp_path)


def test_mod_03_a_missing_number_of_key_heads_means_as_many_as_query_heads(tmp_path: Path):
    save_tiny_model(tmp_path, transformers.LlamaConfig(**SIZES | {"num_key_value_heads": 4}))
    edit(tmp_path, num_key_value_heads=None)
    assert_equal_to_reference(tmp_path)


def test_mod_03_a_default_that_does_not_fit_the_weights_names_the_tensor(tmp_path: Path):
    save_tiny_model(tmp_path)
    edit(tmp_path, num_key_value_heads=None)
    with pytest.raises(ValueError, match=r"k_proj.weight has shape \[32, 64\], the model needs \[64, 64\]"):
        pelton_logits(tmp_path, TOKENS, [len(TOKENS)])


@pytest.mark.parametrize("field", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
def test_mod_03_a_size_without_default_is_named(tmp_path: Path, field: str):
    save_tiny_model(tmp_path)
    edit(tmp_path, **{field: None})
    with pytest.raises(ValueError, match=f"{field} is missing"):
        ModelFiles(tmp_path).info()


@pytest.mark.parametrize(
    ("value", "expected"), [(7, {7}), ([7, 9], {7, 9}), (None, {2}), ([], set())], ids=["one", "list", "none", "empty"]
)
def test_mod_03_end_tokens_may_be_one_or_several(tmp_path: Path, value: Any, expected: set[int]):
    save_tiny_model(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    edit(tmp_path, eos_token_id=value)
    assert set(ModelFiles(tmp_path).info().eos_token_ids) == expected


@pytest.mark.parametrize("in_file", [False, True])
def test_mod_03_a_tied_head_is_the_embedding(tmp_path: Path, in_file: bool):
    save_tiny_model(tmp_path, transformers.LlamaConfig(**SIZES, tie_word_embeddings=True))
    embedding = safetensors.torch.load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"]
    change_tensors(tmp_path, lm_head__weight=embedding.clone() if in_file else None)
    assert_equal_to_reference(tmp_path)


def test_mod_03_a_tied_head_that_differs_from_the_file_s_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    save_tiny_model(tmp_path, transformers.LlamaConfig(**SIZES, tie_word_embeddings=True))
    embedding = safetensors.torch.load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"]
    change_tensors(tmp_path, lm_head__weight=embedding + 1)
    with caplog.at_level(logging.WARNING):
        logits = pelton_logits(tmp_path, TOKENS, [len(TOKENS)])
    assert "lm_head.weight" in caplog.text and "tie_word_embeddings" in caplog.text
    change_tensors(tmp_path, lm_head__weight=None)
    torch.testing.assert_close(logits, reference_logits(tmp_path), rtol=1e-4, atol=1e-4)


def test_mod_03_an_untied_head_that_is_missing_is_refused(tmp_path: Path):
    save_tiny_model(tmp_path)
    change_tensors(tmp_path, lm_head__weight=None)
    with pytest.raises(ValueError, match=r"the checkpoint lacks lm_head.weight"):
        pelton_logits(tmp_path, TOKENS, [len(TOKENS)])


def test_mod_03_a_weight_that_the_model_does_not_use_is_refused_by_name(tmp_path: Path):
    save_tiny_model(tmp_path)
    change_tensors(tmp_path, model__layers__7__mlp__up_proj__weight=torch.ones(96, 64))
    with pytest.raises(ValueError, match=r"does not use: model.layers.7.mlp.up_proj.weight"):
        pelton_logits(tmp_path, TOKENS, [len(TOKENS)])
