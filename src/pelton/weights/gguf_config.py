"""What a GGUF header says of the model, in Hugging Face's terms: config.json fields and parameter names."""

import re
import struct
from typing import Any

from pelton.types import JsonObject
from pelton.weights.gguf_file import GGUFFile

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
# Config field: key after the architecture's prefix. The fields of the first group have no default.
_REQUIRED = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}
_OPTIONAL = {
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rope_theta": "rope.freq_base",
}
_REAL_KEYS = ("epsilon", "freq_base")
_END_TOKENS = ("eos", "eot", "eom")  # of the text, of a turn, of a message that awaits a tool's answer
_DTYPES = {"F16": "float16", "BF16": "bfloat16"}

_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_ROPE_FACTORS = "rope_freqs.weight"


def gguf_config(file: GGUFFile) -> JsonObject:
    """The config.json that the model would have, for `ModelInfo.from_hf`.

    One field is GGUF's own: "rope_freq_factors", by which the head_dim / 2 rotary frequencies are to be divided
    (llama.cpp keeps the result of Llama 3's scaling so, not its parameters).

    Raises:
        ValueError: the architecture or something it uses is not supported, or the header lacks a field.
    """
    architecture = gguf_architecture(file)
    config: JsonObject = {"architectures": [_ARCHITECTURES[architecture]], "model_type": architecture}
    for field, key in (_REQUIRED | _OPTIONAL).items():
        value = file.metadata.get(f"{architecture}.{key}")
        if value is not None:
            config[field] = _scalar(file, f"{architecture}.{key}", value)
        elif field in _REQUIRED:
            raise ValueError(f"{file.path}: the header has no {architecture}.{key}")
    config.setdefault("num_key_value_heads", config["num_attention_heads"])
    config.setdefault("head_dim", config["hidden_size"] // max(config["num_attention_heads"], 1))
    config["vocab_size"] = _vocab_size(file)
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    config["mlp_bias"] = "blk.0.ffn_gate.bias" in file.tensors
    config["dtype"] = _DTYPES.get(file.tensors["token_embd.weight"].type, "float32")
    config["bos_token_id"] = file.metadata.get("tokenizer.ggml.bos_token_id")
    end_ids = [file.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in _END_TOKENS]
    config["eos_token_id"] = [token for token in end_ids if token is not None]
    _refuse_unsupported(file, architecture, config["head_dim"])
    config.update(_rope_scaling(file, architecture, config["head_dim"]))
    return config


def gguf_architecture(file: GGUFFile) -> str:
    """general.architecture, if supported: "llama" (Llama, Mistral, SmolLM), "qwen2" or "qwen3"."""
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in _ARCHITECTURES:
        raise ValueError(f"{file.path}: architecture {name!r} is not supported; supported: {', '.join(_ARCHITECTURES)}")
    return name


def hugging_face_name(name: str) -> str | None:
    """The Hugging Face name of a GGUF tensor, None for one that is no parameter; KeyError if it is unknown."""
    if name == _ROPE_FACTORS:
        return None
    match = _LAYER_TENSOR.fullmatch(name)
    if match is None:
        return _NAMES[name]
    return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.{match[3]}"


def _scalar(file: GGUFFile, key: str, value: Any) -> int | float:  # noqa: ANN401 (the header decides)
    if isinstance(value, list):
        raise ValueError(f"{file.path}: {key} that differs between layers is not supported yet")
    expected = float if key.endswith(_REAL_KEYS) else int
    if type(value) is not expected:
        raise ValueError(f"{file.path}: {key} must be of type {expected.__name__}, got {value!r}")
    return value


def _vocab_size(file: GGUFFile) -> int:
    """Rows of the embedding: the tokenizer may know fewer tokens where the embedding is padded."""
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ValueError(f"{file.path}: tensor 'token_embd.weight' is missing")
    return embedding.shape[0]


def _refuse_unsupported(file: GGUFFile, architecture: str, head_dim: int) -> None:
    if file.metadata.get(f"{architecture}.expert_count", 0):
        raise ValueError(f"{file.path}: mixture-of-experts models are not supported yet")
    for key in ("attention.value_length", "rope.dimension_count"):
        value = file.metadata.get(f"{architecture}.{key}", head_dim)
        if value != head_dim:
            raise ValueError(f"{file.path}: {key} {value} that differs from the head size {head_dim} is not supported")


def _rope_scaling(file: GGUFFile, architecture: str, head_dim: int) -> JsonObject:
    """The config fields of a rotary embedding that is not the plain one."""
    prefix = f"{architecture}.rope"
    kind = file.metadata.get(f"{prefix}.scaling.type", "none")
    factor = file.metadata.get(f"{prefix}.scaling.factor", file.metadata.get(f"{prefix}.scale_linear", 1.0))
    if _ROPE_FACTORS in file.tensors:
        return {"rope_freq_factors": _rope_factors(file, head_dim)}
    if kind == "none" and f"{prefix}.scale_linear" in file.metadata:  # before llama.cpp had types of scaling
        kind = "linear"
    return {} if kind == "none" else {"rope_scaling": {"rope_type": kind, "factor": factor}}


def _rope_factors(file: GGUFFile, head_dim: int) -> list[float]:
    tensor = file.tensors[_ROPE_FACTORS]
    if tensor.type != "F32" or tensor.shape != (head_dim // 2,):
        found = f"{tensor.type} {list(tensor.shape)}"
        raise ValueError(f"{file.path}: tensor {_ROPE_FACTORS!r} is {found}, expected F32 [{head_dim // 2}]")
    factors = list(struct.unpack(f"<{head_dim // 2}f", file.raw(_ROPE_FACTORS)))
    if not all(0 < factor < float("inf") for factor in factors):
        raise ValueError(f"{file.path}: tensor {_ROPE_FACTORS!r} holds a factor that is not positive and finite")
    return factors
