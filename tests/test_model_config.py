"""ModelInfo.from_hf against transformers' configuration classes."""

import pytest
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from pelton.model_config import ModelInfo

CLASSES = {
    "LlamaForCausalLM": LlamaConfig,
    "MistralForCausalLM": MistralConfig,
    "Qwen2ForCausalLM": Qwen2Config,
    "Qwen3ForCausalLM": Qwen3Config,
}
SIZES = {
    "vocab_size": 1000,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 32,
}
COMPLETE = {
    **SIZES,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 50000.0,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "bos_token_id": 5,
    "eos_token_id": 6,
    "torch_dtype": "bfloat16",
}


def config(architecture="LlamaForCausalLM", base=COMPLETE, without=(), **changes):
    fields = {"architectures": [architecture], **base, **changes}
    return {name: value for name, value in fields.items() if name not in without}


def assert_as_transformers(given):
    """What ModelInfo reads from `given` is what transformers reads from it."""
    info = ModelInfo.from_hf(given)
    fields = {name: value for name, value in given.items() if name != "architectures"}
    reference = CLASSES[info.architecture](**fields)
    for name in (*SIZES, "num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings"):
        assert getattr(info, name) == getattr(reference, name), name
    head_dim = getattr(reference, "head_dim", None) or reference.hidden_size // reference.num_attention_heads
    assert info.head_dim == head_dim
    assert info.rope_theta == reference.rope_parameters["rope_theta"]
    assert info.bos_token_id == reference.bos_token_id
    eos = reference.eos_token_id
    assert list(info.eos_token_ids) == ([] if eos is None else eos if isinstance(eos, list) else [eos])
    assert info.attention_output_bias == (info.architecture != "Qwen2ForCausalLM" and info.attention_bias)
    assert info.attention_bias == getattr(reference, "attention_bias", info.architecture == "Qwen2ForCausalLM")
    assert info.mlp_bias == getattr(reference, "mlp_bias", False)
    assert info.qk_norm == (info.architecture == "Qwen3ForCausalLM")


@pytest.mark.parametrize("architecture", CLASSES)
@pytest.mark.parametrize("missing", [None, *(name for name in COMPLETE if name not in SIZES)])
def test_a_field_left_out_has_the_default_of_transformers(architecture, missing):
    assert_as_transformers(config(architecture, without=(missing,)))


@pytest.mark.parametrize("architecture", CLASSES)
def test_sizes_alone_give_the_defaults_of_transformers(architecture):
    assert_as_transformers(config(architecture, base=SIZES))


@pytest.mark.parametrize("missing", SIZES)
def test_a_missing_size_is_named(missing):
    with pytest.raises(ValueError, match=f"{missing} is missing"):
        ModelInfo.from_hf(config(without=(missing,)))


@pytest.mark.parametrize("changes", [{"attention_bias": True}, {"mlp_bias": True}])
def test_llama_biases_follow_the_config(changes):
    assert_as_transformers(config(**changes))


def test_qwen3_attention_bias_follows_the_config():
    assert_as_transformers(config("Qwen3ForCausalLM", attention_bias=True))


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def test_null_key_value_heads_mean_one_per_query_head(architecture):
    assert_as_transformers(config(architecture, num_key_value_heads=None))


def test_eos_may_be_a_list():
    assert ModelInfo.from_hf(config(eos_token_id=[7, 8, 7])).eos_token_ids == (7, 8)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"torch_dtype": "float16"}, "float16"),
        ({"dtype": "bfloat16", "torch_dtype": "float32"}, "bfloat16"),
        ({"torch_dtype": None}, "float32"),
    ],
)
def test_dtype_in_either_spelling(given, expected):
    assert ModelInfo.from_hf(config(without=("torch_dtype",)) | given).torch_dtype == expected


def test_model_type_stands_in_for_a_missing_architecture():
    given = config(without=("architectures",), model_type="qwen3")
    assert ModelInfo.from_hf(given).architecture == "Qwen3ForCausalLM"


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 256}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (50000.0, None)),
        ({"rope_scaling": None}, (50000.0, None)),
        ({"rope_scaling": {"type": "default"}}, (50000.0, None)),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, (50000.0, {"rope_type": "linear", "factor": 2.0})),
        ({"rope_scaling": {"rope_type": "llama3", **LLAMA3}}, (50000.0, {"rope_type": "llama3", **LLAMA3})),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}, (7.0, None)),
        (
            {"rope_parameters": {"rope_type": "llama3", "rope_theta": 7.0, **LLAMA3}},
            (7.0, {"rope_type": "llama3", **LLAMA3}),
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "linear", "rope_theta": 7.0, "factor": 2.0}}},
            (7.0, {"rope_type": "linear", "factor": 2.0}),
        ),
    ],
)
def test_rope_in_the_forms_of_transformers_4_and_5(given, expected):
    info = ModelInfo.from_hf(config() | given)
    assert (info.rope_theta, info.rope_scaling) == expected
    if "full_attention" not in given.get("rope_parameters", {}):
        reference = LlamaConfig(**(COMPLETE | given)).rope_parameters
        rope_type = info.rope_scaling["rope_type"] if info.rope_scaling else "default"
        assert (reference["rope_theta"], reference["rope_type"]) == (info.rope_theta, rope_type)


def test_llama3_rope_takes_the_trained_context_where_it_names_none():
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    info = ModelInfo.from_hf(config(rope_scaling=scaling))
    reference = LlamaConfig(**COMPLETE, rope_scaling=dict(scaling)).rope_parameters
    original = info.rope_scaling["original_max_position_embeddings"]
    assert original == reference["original_max_position_embeddings"] == 1024


@pytest.mark.parametrize(
    ("architecture", "given", "expected"),
    [
        ("MistralForCausalLM", {"max_position_embeddings": 32768}, 4096),
        ("MistralForCausalLM", {"sliding_window": None}, None),
        ("MistralForCausalLM", {"sliding_window": 100}, 100),
        ("MistralForCausalLM", {"sliding_window": 1024}, None),  # the whole context: never cuts anything off
        ("LlamaForCausalLM", {"sliding_window": 100}, None),
        ("Qwen2ForCausalLM", {"sliding_window": 100}, None),
        ("Qwen2ForCausalLM", {"sliding_window": 100, "use_sliding_window": True}, None),  # 3 layers, all below 28
        ("Qwen2ForCausalLM", {"sliding_window": 100, "use_sliding_window": True, "max_window_layers": 0}, 100),
        ("Qwen3ForCausalLM", {"sliding_window": 9, "use_sliding_window": True, "max_window_layers": 3}, None),
        (
            "Qwen3ForCausalLM",
            {"sliding_window": 9, "use_sliding_window": True, "layer_types": ["sliding_attention"] * 3},
            9,
        ),
    ],
)
def test_sliding_window_only_where_it_is_in_use(architecture, given, expected):
    info = ModelInfo.from_hf(config(architecture) | given)
    assert info.sliding_window == expected
    if architecture.startswith("Qwen"):
        reference = CLASSES[architecture](**(COMPLETE | given))
        is_sliding = {kind == "sliding_attention" for kind in reference.layer_types}
        assert is_sliding == {expected is not None}
        assert expected in (None, reference.sliding_window)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"architectures": ["Qwen3MoeForCausalLM"]}, r"'Qwen3MoeForCausalLM' is not supported.*nearest: Qwen3For"),
        ({"architectures": ["MambaModel"]}, r"'MambaModel' is not supported; supported: Llama.*Qwen3ForCausalLM$"),
        ({"architectures": None}, "architectures is missing"),
        ({"quantization_config": {"quant_method": "awq"}}, r"quantization_config \(awq\) is not supported yet"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_scaling of type 'yarn' is not supported yet"),
        ({"rope_scaling": {"type": "linear"}}, r"rope_scaling\.factor must be a positive number, got None"),
        ({"rope_scaling": 3}, "rope_scaling must be an object, got 3"),
        ({"rope_parameters": {"full_attention": {}, "sliding_attention": {}}}, "differs between layers"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported yet"),
        ({"num_key_value_heads": 5}, "32 is not a multiple of num_key_value_heads 5"),
        ({"head_dim": 15}, "head_dim must be even"),
        ({"head_dim": None, "hidden_size": 250}, "hidden_size 250 is not a multiple of num_attention_heads 32"),
        ({"hidden_size": "256"}, "hidden_size must be a positive integer, got '256'"),
        ({"vocab_size": 0}, "vocab_size must be a positive integer, got 0"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be a positive number"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        ({"eos_token_id": [2, "x"]}, "eos_token_id must be a token id or a list"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported yet"),
        ({"torch_dtype": "int8"}, "dtype 'int8' is not supported"),
    ],
)
def test_what_cannot_run_is_refused_by_name(given, message):
    with pytest.raises(ValueError, match=message) as raised:
        ModelInfo.from_hf(config() | given)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("given", "full"),
    [
        ({"max_window_layers": 2}, (0, 1)),
        ({"max_window_layers": 0}, ()),
        ({"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}, (1,)),
    ],
)
def test_a_window_in_some_layers(given, full):
    given = {"use_sliding_window": True, "sliding_window": 100, **given}
    info = ModelInfo.from_hf(config("Qwen2ForCausalLM") | given)
    assert (info.sliding_window, info.full_attention_layers) == (100, full)
    kinds = CLASSES["Qwen2ForCausalLM"](**(COMPLETE | given)).layer_types
    assert tuple(layer for layer, kind in enumerate(kinds) if kind == "full_attention") == full


@pytest.mark.parametrize("architecture", CLASSES)
def test_no_value_of_any_field_gives_more_than_a_value_error(architecture):
    fields = [*COMPLETE, "architectures", "model_type", "rope_scaling", "rope_parameters", "sliding_window", "dtype"]
    fields += ["layer_types", "max_window_layers", "attention_bias", "mlp_bias", "partial_rotary_factor"]
    values = [
        None,
        [],
        {},
        [1],
        ["x"],
        {"type": []},
        {"rope_theta": []},
        "x",
        "",
        -1,
        0,
        1.5,
        True,
        10**400,
        float("nan"),
    ]
    for name in fields:
        for value in values:
            given = config(architecture, use_sliding_window=True, max_window_layers=0) | {name: value}
            try:
                info = ModelInfo.from_hf(given)
            except ValueError as error:
                assert "\n" not in str(error)  # noqa: PT017 (most values are refused, some are not)
            else:
                assert info.kv_bytes_per_token("float32") > 0
