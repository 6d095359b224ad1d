"""EngineConfig: ranges, types of values, and what `resolve` chooses."""

import dataclasses
import json
import tomllib

import pytest

import pelton.config
from pelton.config import EngineConfig, field_type, parse_size, resolve
from pelton.model_config import ModelInfo

INFO = ModelInfo(
    architecture="LlamaForCausalLM",
    vocab_size=100,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=1000,
)
KV_BYTES_FLOAT32 = 2 * 2 * 2 * 16 * 4  # keys and values, layers, heads, head size, bytes


def test_every_setting_is_documented_and_grouped():
    for spec in dataclasses.fields(EngineConfig):
        assert spec.metadata["help"]
        assert spec.metadata["group"] in ("model", "engine", "server", "logging")
        assert field_type(spec) in (str, int, float, bool, tuple)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"port": "9000"}, {"port": 9000}),
        ({"max-model-len": 512}, {"max_model_len": 512}),
        ({"kv_cache_memory": "1.5G"}, {"kv_cache_memory": 3 * 2**29}),
        ({"kv_cache_memory": 4096}, {"kv_cache_memory": 4096}),
        ({"enable_prefix_caching": "False"}, {"enable_prefix_caching": False}),
        ({"shutdown_timeout": 5}, {"shutdown_timeout": 5.0}),
        ({"api_key": "one"}, {"api_key": ("one",)}),
        ({"api_key": ["one", "two"]}, {"api_key": ("one", "two")}),
        ({"max_model_len": None}, {"max_model_len": None}),
    ],
)
def test_values_become_the_types_of_their_fields(values, expected):
    config = EngineConfig.from_mapping(values)
    assert config == dataclasses.replace(EngineConfig(), **expected)
    for name, value in expected.items():
        assert type(getattr(config, name)) is type(value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"port": "x"}, "port must be an integer, got 'x'"),
        ({"port": True}, "port must be an integer, got True"),
        ({"port": 1.5}, "port must be an integer, got 1.5"),
        ({"port": 0}, "port must be at least 1, got 0"),
        ({"port": 65536}, "port must be at most 65535"),
        ({"host": 5}, "host must be a string, got 5"),
        ({"model": {"name": "x"}}, "model must be a string"),
        ({"api_key": [1]}, "api_key must be a list of strings"),
        ({"enable_prefix_caching": "yes"}, "enable_prefix_caching must be true or false"),
        ({"enable_prefix_caching": 1}, "enable_prefix_caching must be true or false"),
        ({"shutdown_timeout": "nan"}, "shutdown_timeout must be at least 0"),
        ({"kv_cache_memory": "lots"}, "kv_cache_memory must be a size such as 4G"),
        ({"dtype": "fp8"}, "dtype must be one of auto, bfloat16, float32, got 'fp8'"),
        ({"page_size": 24}, "page_size must be a multiple of 16"),
        ({"max_modle_len": 5}, "unknown setting 'max_modle_len'; did you mean max_model_len?"),
        ({"zzz": 5}, "unknown setting 'zzz'; the settings are: allowed_origins, api_key"),
    ],
)
def test_bad_values_name_the_setting(values, message):
    with pytest.raises(ValueError, match="^" + message.replace("?", r"\?")):
        EngineConfig.from_mapping(values)


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("123", 123), ("1k", 1024), ("512M", 2**29), ("4G", 2**32), ("4 GiB", 2**32), ("0.5t", 2**39)],
)
def test_sizes(text, size):
    assert parse_size("memory", text) == size


@pytest.mark.parametrize("text", ["", "G", "-1", "1x", "1e3", "4 4"])
def test_bad_sizes_are_refused(text):
    with pytest.raises(ValueError, match="memory must be a size"):
        parse_size("memory", text)


def test_toml_and_json_mean_the_same():
    toml = tomllib.loads('port = 9000\nkv-cache-memory = "1G"\napi-key = ["a"]\nenable-prefix-caching = false')
    parsed = json.loads('{"port": 9000, "kv_cache_memory": "1G", "api_key": ["a"], "enable_prefix_caching": false}')
    assert EngineConfig.from_mapping(toml) == EngineConfig.from_mapping(parsed)


def test_resolve_leaves_no_auto():
    resolved = resolve(EngineConfig(), INFO)
    assert resolved.max_model_len == 1000
    for name in ("dtype", "kv_cache_dtype", "device"):
        assert getattr(resolved, name) != "auto"
    for name in ("num_threads", "max_num_batched_tokens", "kv_cache_memory"):
        assert getattr(resolved, name) is not None


def test_resolve_keeps_what_was_set():
    config = EngineConfig(dtype="float32", max_model_len=100, num_threads=3, max_num_batched_tokens=77)
    resolved = resolve(config, INFO)
    assert (resolved.dtype, resolved.max_model_len, resolved.num_threads) == ("float32", 100, 3)
    assert resolved.max_num_batched_tokens == 77


def test_the_default_cache_holds_all_requests_or_half_the_memory(monkeypatch):
    config = EngineConfig(kv_cache_dtype="float32", max_num_seqs=2)
    monkeypatch.setattr(pelton.config, "available_memory", lambda: 2**40)
    assert resolve(config, INFO).kv_cache_memory == 2 * 1008 * KV_BYTES_FLOAT32  # 63 pages of 16 tokens each
    monkeypatch.setattr(pelton.config, "available_memory", lambda: 2 * 1100 * KV_BYTES_FLOAT32)
    assert resolve(config, INFO).kv_cache_memory == 1088 * KV_BYTES_FLOAT32  # half, in whole pages


def test_a_cache_below_one_request_is_refused_with_what_fits():
    config = EngineConfig(kv_cache_dtype="float32", kv_cache_memory=100 * KV_BYTES_FLOAT32, max_model_len=1000)
    with pytest.raises(
        ValueError, match=rf"--max-model-len 96 or less, or --kv-cache-memory {1008 * KV_BYTES_FLOAT32}"
    ):
        resolve(config, INFO)
    fitting = dataclasses.replace(config, max_model_len=96)
    assert resolve(fitting, INFO).kv_cache_memory == 96 * KV_BYTES_FLOAT32


@pytest.mark.parametrize("kv_cache_dtype", ["int8", "fp8"])
def test_a_cache_of_8_bits_has_a_scale_of_4_bytes_to_each_head(kv_cache_dtype):
    token_bytes = 2 * 2 * 2 * (16 + 4)  # keys and values, layers, heads
    config = EngineConfig(kv_cache_dtype=kv_cache_dtype, kv_cache_memory=2000 * token_bytes)
    assert resolve(config, INFO).kv_cache_memory == 2000 * token_bytes
    assert INFO.kv_bytes_per_token(kv_cache_dtype) == token_bytes


def test_an_unset_context_shrinks_to_what_the_cache_holds():
    config = EngineConfig(kv_cache_dtype="float32", kv_cache_memory=100 * KV_BYTES_FLOAT32)
    assert resolve(config, INFO).max_model_len == 96


def test_the_default_cache_is_4_gib_at_most_unless_one_request_needs_more(monkeypatch):
    monkeypatch.setattr(pelton.config, "available_memory", lambda: 2**50)
    config = EngineConfig(kv_cache_dtype="float32", max_num_seqs=65536)
    assert resolve(config, INFO).kv_cache_memory == 2**32 // (16 * KV_BYTES_FLOAT32) * 16 * KV_BYTES_FLOAT32
    large = dataclasses.replace(INFO, num_key_value_heads=2**20)
    assert resolve(config, large).max_model_len == 1000


def test_a_context_beyond_the_trained_one_is_refused():
    with pytest.raises(ValueError, match="set --max-model-len 1000 or less"):
        resolve(EngineConfig(max_model_len=1001), INFO)
