"""What ModelFiles reads beside the weights."""

import json

import gguf
import pytest

from pelton.weights.hub import locate
from pelton.weights.model_files import ModelFiles
from weights.gguf_samples import write

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "eos_token_id": 2,
}


@pytest.fixture
def directory(tmp_path):
    path = tmp_path / "Some-Model-1B"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    return path


@pytest.mark.parametrize(
    ("in_config", "in_generation", "expected"),
    [(2, None, (2,)), (2, 3, (2, 3)), (2, [3, 2], (2, 3)), ([4, 5], [5, 6], (4, 5, 6)), (None, [7], (7,))],
)
def test_end_tokens_of_the_generation_config_are_added(directory, in_config, in_generation, expected):
    (directory / "config.json").write_text(json.dumps(CONFIG | {"eos_token_id": in_config}))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": in_generation}))
    assert ModelFiles(directory).info().eos_token_ids == expected


def test_a_generation_config_is_optional(directory):
    info = ModelFiles(directory).info()
    assert (info.vocab_size, info.eos_token_ids) == (100, (2,))


def test_end_tokens_of_the_generation_config_replace_the_default(directory):
    (directory / "config.json").write_text(json.dumps({k: v for k, v in CONFIG.items() if k != "eos_token_id"}))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": 9}))
    assert ModelFiles(directory).info().eos_token_ids == (9,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"config\.json: no such file"),
        ("{", r"config\.json: not JSON: "),
        ("[]", r"config\.json: not a JSON object"),
        (json.dumps(CONFIG | {"hidden_size": None}), r"config\.json: hidden_size is missing"),
    ],
)
def test_a_bad_config_is_refused_with_its_path(directory, text, message):
    path = directory / "config.json"
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(ValueError, match=message) as raised:
        ModelFiles(directory).info()
    assert str(raised.value).startswith(str(directory))


@pytest.mark.parametrize(
    ("file_name", "expected"),
    [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct"),
        ("qwen3-0.6b-q8_0.gguf", "qwen3-0.6b"),
        ("Llama-3.2-1B-Instruct-IQ4_XS.gguf", "Llama-3.2-1B-Instruct"),
        ("Model-1B-Q4_K_M.gguf", "Model-1B"),
        ("model-bf16.gguf", "model"),
        ("my-model.gguf", "my-model"),
    ],
)
def test_a_file_s_name_without_its_quantization(tmp_path, file_name, expected):
    assert ModelFiles(tmp_path / file_name).name == expected


def test_a_directory_s_name(directory, monkeypatch):
    assert ModelFiles(directory).name == "Some-Model-1B"
    monkeypatch.chdir(directory)
    assert ModelFiles(".").name == "Some-Model-1B"


def test_the_demo_model():
    files = ModelFiles(locate(None))
    assert files.name == "SmolLM2-135M-Instruct"
    assert files.info().vocab_size == 49152
    tokenizer = files.tokenizer()
    assert tokenizer.decode(tokenizer.encode("Water turns the wheel.")) == "Water turns the wheel."


def test_a_gguf_file_that_cannot_run_is_refused_with_its_path(tmp_path):
    path = tmp_path / "model.gguf"
    write(path, metadata=[("llama.attention.head_count_kv", 3, gguf.GGUFValueType.UINT32)])
    with pytest.raises(ValueError, match=r"model\.gguf: .*4 is not a multiple of num_key_value_heads 3"):
        ModelFiles(path).info()
