"""What a GGUF header says of the model, against Hugging Face's names and configuration."""

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from pelton.model_config import ModelInfo
from pelton.weights.gguf_config import gguf_config, hugging_face_name
from pelton.weights.gguf_file import GGUFFile
from pelton.weights.hub import locate
from weights.gguf_samples import SIZES, write

UNSIGNED, REAL, TEXT = gguf.GGUFValueType.UINT32, gguf.GGUFValueType.FLOAT32, gguf.GGUFValueType.STRING


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.gguf"


def config_of(path, **arguments):
    write(path, **arguments)
    return gguf_config(GGUFFile(path))


def info_of(path, **arguments):
    return ModelInfo.from_hf(config_of(path, **arguments))


def test_the_demo_model_is_what_its_model_card_says():
    info = ModelInfo.from_hf(gguf_config(GGUFFile(locate(None))))
    assert info == ModelInfo(
        architecture="LlamaForCausalLM",
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        max_position_embeddings=8192,
        rms_norm_eps=float(np.float32(1e-5)),
        rope_theta=100000.0,
        tie_word_embeddings=True,
        torch_dtype="float32",
        bos_token_id=1,
        eos_token_ids=(2,),
    )


def test_a_header_reads_as_in_transformers(path):
    info = info_of(path)
    reference = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    for name in (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
        "rms_norm_eps",
        "bos_token_id",
    ):
        assert getattr(info, name) == getattr(reference, name), name
    assert info.rope_theta == reference.rope_parameters["rope_theta"]
    assert info.eos_token_ids == (reference.eos_token_id,)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_each_architecture(path, architecture):
    info = info_of(path, architecture=architecture)
    assert info.architecture == f"{architecture.capitalize()}ForCausalLM"
    assert (info.vocab_size, info.hidden_size, info.num_hidden_layers) == (24, 64, 2)
    assert (info.num_attention_heads, info.num_key_value_heads, info.head_dim) == (4, 2, 16)
    assert info.rope_theta == 20000.0
    assert info.attention_bias == (architecture == "qwen2")


def test_key_length_is_the_head_size(path):
    keys = [("qwen3.attention.key_length", 32, UNSIGNED), ("qwen3.attention.value_length", 32, UNSIGNED)]
    assert info_of(path, architecture="qwen3", metadata=keys).head_dim == 32


def test_keys_left_out_have_the_format_s_defaults(path):
    info = info_of(path, without=["llama.attention.head_count_kv", "llama.rope.freq_base"])
    assert info.num_key_value_heads == SIZES["heads"]
    assert info.rope_theta == 10000.0


def test_an_output_tensor_unties_the_embeddings(path):
    assert info_of(path).tie_word_embeddings
    head = np.zeros((SIZES["vocab"], SIZES["hidden"]), dtype=np.float32)
    assert not info_of(path, tensors={"output.weight": head}).tie_word_embeddings


def test_every_kind_of_end_token_counts(path):
    keys = [("tokenizer.ggml.eot_token_id", 9, UNSIGNED), ("tokenizer.ggml.eom_token_id", 8, UNSIGNED)]
    assert info_of(path, metadata=keys).eos_token_ids == (2, 9, 8)


def test_linear_rope_scaling(path):
    keys = [("llama.rope.scaling.type", "linear", TEXT), ("llama.rope.scaling.factor", 4.0, REAL)]
    assert info_of(path, metadata=keys).rope_scaling == {"rope_type": "linear", "factor": 4.0}


def test_llama3_frequency_factors_are_handed_on(path):
    factors = np.linspace(1, 8, 8, dtype=np.float32)
    info = info_of(path, tensors={"rope_freqs.weight": factors})
    assert info.extra["rope_freq_factors"] == tuple(factors.tolist())
    assert info.rope_scaling is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"architecture": "gemma3"}, "architecture 'gemma3' is not supported; supported: llama, qwen2, qwen3"),
        ({"without": ["llama.block_count"]}, "the header has no llama.block_count"),
        ({"tensors": {"token_embd.weight": None}}, "tensor 'token_embd.weight' is missing"),
        ({"metadata": [("llama.expert_count", 8, UNSIGNED)]}, "mixture-of-experts models are not supported yet"),
        ({"metadata": [("llama.rope.dimension_count", 8, UNSIGNED)]}, "rope.dimension_count 8 that differs"),
        ({"metadata": [("llama.attention.head_count", [4, 2], gguf.GGUFValueType.ARRAY)]}, "differs between layers"),
        (
            {"metadata": [("general.architecture", [1], gguf.GGUFValueType.ARRAY)]},
            r"architecture \[1\] is not supported",
        ),
        ({"metadata": [("llama.attention.head_count", 4.0, REAL)]}, "head_count must be of type int, got 4.0"),
        ({"metadata": [("llama.block_count", "2", TEXT)]}, "llama.block_count must be of type int, got '2'"),
        ({"metadata": [("llama.rope.scaling.type", "yarn", TEXT)]}, "type 'yarn' is not supported yet"),
        ({"tensors": {"rope_freqs.weight": np.ones(3, dtype=np.float32)}}, r"is F32 \[3\], expected F32 \[8\]"),
        ({"tensors": {"rope_freqs.weight": np.zeros(8, dtype=np.float32)}}, "not positive and finite"),
        ({"metadata": [("llama.attention.head_count", 0, UNSIGNED)]}, "num_attention_heads must be a positive"),
    ],
)
def test_what_cannot_run_is_refused_by_name(path, arguments, message):
    with pytest.raises(ValueError, match=message):
        info_of(path, **arguments)


@pytest.mark.parametrize(
    ("architecture", "config_class"), [("llama", LlamaConfig), ("qwen2", Qwen2Config), ("qwen3", Qwen3Config)]
)
def test_names_cover_the_parameters_of_transformers(architecture, config_class):
    """The gguf package names each Hugging Face parameter in GGUF's terms; ours must lead back."""
    model_config = config_class(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2, head_dim=4,
        num_key_value_heads=2, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.device("meta"):
        expected = AutoModelForCausalLM.from_config(model_config).state_dict()
    kind = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, 2)
    for name in expected:
        assert hugging_face_name(names.get_name(name, try_suffixes=(".weight", ".bias"))) == name
