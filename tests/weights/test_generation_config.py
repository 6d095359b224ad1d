"""The sampling that a model's files recommend."""

import json
import logging

import gguf
import pytest

from pelton.weights.generation_config import from_generation_config, overridden
from pelton.weights.hub import locate
from pelton.weights.model_files import ModelFiles
from weights.gguf_samples import write


def test_each_field_of_a_generation_config_has_its_parameter(tmp_path):
    config = {
        **{"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0, "repetition_penalty": 1.05},
        **{"max_new_tokens": 2048, "do_sample": False, "max_length": 20, "eos_token_id": 2, "num_beams": 4},
    }
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    assert ModelFiles(tmp_path).sampling_defaults() == {
        **{"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.0, "repetition_penalty": 1.05},
        "max_tokens": 2048,
    }


def test_without_a_generation_config_or_with_nulls_there_are_none(tmp_path):
    assert ModelFiles(tmp_path).sampling_defaults() == {}
    (tmp_path / "generation_config.json").write_text('{"temperature": null, "top_k": null}')
    assert ModelFiles(tmp_path).sampling_defaults() == {}


@pytest.mark.parametrize("top_k", [0, -1, 50.0])
def test_integers_stay_integers_and_a_filter_may_be_off(tmp_path, top_k):
    defaults = from_generation_config({"top_k": top_k, "temperature": 1}, tmp_path)
    assert defaults == {"top_k": top_k, "temperature": 1.0}
    assert (type(defaults["top_k"]), type(defaults["temperature"])) == (int, float)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("temperature", -0.1, "temperature must be at least 0.0 and at most 2.0, got -0.1"),
        ("temperature", 10**400, "temperature must be finite"),
        ("temperature", "warm", "temperature must be a number, got 'warm'"),
        ("temperature", True, "temperature must be a number, got 'True'"),
        ("top_p", 0, "top_p must be above 0.0 and at most 1.0, got 0.0"),
        ("top_p", float("nan"), "top_p must be finite"),
        ("top_k", -2, "top_k must be at least -1"),
        ("top_k", 2.5, "top_k must be an integer, got 2.5"),
        ("min_p", 2, "min_p must be at least 0.0 and at most 1.0, got 2.0"),
        ("repetition_penalty", 0, "repetition_penalty must be above 0.0"),
        ("repetition_penalty", float("inf"), "repetition_penalty must be finite"),
        ("max_new_tokens", 0, "max_tokens must be at least 1, got 0"),
        ("max_new_tokens", [5], "max_tokens must be a number, got '[5]'"),
    ],
)
def test_what_no_request_could_ask_for_is_ignored_with_a_warning(tmp_path, caplog, field, value, reason):
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps({field: value, "seed": 1}))
    with caplog.at_level(logging.WARNING):
        assert ModelFiles(tmp_path).sampling_defaults() == {}
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{path}: {field} is ignored: {reason}")


def test_a_gguf_header_has_them_in_32_bits_and_the_decimals_are_meant(tmp_path):
    path = tmp_path / "model.gguf"
    real, integer = gguf.GGUFValueType.FLOAT32, gguf.GGUFValueType.INT32
    metadata = [
        ("general.sampling.temp", 0.6, real),
        ("general.sampling.top_p", 0.95, real),
        ("general.sampling.top_k", 20, integer),
        ("general.sampling.min_p", 0.05, real),
        ("general.sampling.penalty_repeat", 1.05, real),
    ]
    write(path, metadata=metadata)
    assert ModelFiles(path).sampling_defaults() == {
        **{"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.05}
    }


def test_the_keys_are_those_that_llama_cpp_writes():
    sampling = gguf.Keys.General
    names = ("SAMPLING_TEMP", "SAMPLING_TOP_P", "SAMPLING_TOP_K", "SAMPLING_MIN_P", "SAMPLING_PENALTY_REPEAT")
    assert [getattr(sampling, name).removeprefix("general.sampling.") for name in names] == [
        *("temp", "top_p", "top_k", "min_p", "penalty_repeat")
    ]


def test_a_bad_value_of_a_gguf_header_is_named_by_its_key(tmp_path, caplog):
    path = tmp_path / "model.gguf"
    write(path, metadata=[("general.sampling.temp", 7.0, gguf.GGUFValueType.FLOAT32)])
    assert ModelFiles(path).sampling_defaults() == {}
    assert f"{path}: general.sampling.temp is ignored: temperature must be" in caplog.text


def test_the_demo_model_recommends_nothing():
    assert ModelFiles(locate(None)).sampling_defaults() == {}


def test_an_override_wins_and_null_takes_away():
    defaults = {"temperature": 0.6, "top_p": 0.9, "top_k": 20}
    text = '{"temperature": 0.2, "top_k": null, "max_new_tokens": 64}'
    assert overridden(defaults, text) == {"temperature": 0.2, "top_p": 0.9, "max_tokens": 64}
    assert defaults == {"temperature": 0.6, "top_p": 0.9, "top_k": 20}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("temperature=1", "override_generation_config is not JSON: "),
        ("[1]", "override_generation_config must be a JSON object"),
        ('{"temprature": 1}', "override_generation_config: unknown field 'temprature'; the fields are: temperature, "),
        ('{"temperature": 3}', "override_generation_config: temperature: temperature must be at least 0.0"),
    ],
)
def test_a_bad_override_is_refused(text, message):
    with pytest.raises(ValueError, match="^" + message):
        overridden({}, text)
