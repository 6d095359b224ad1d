"""ModelInfo: what scheduler, planner, server and model code need to know of a model, without its weights."""

import difflib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

BYTES_BY_DTYPE = {"float32": 4, "bfloat16": 2, "float16": 2}
_SCALE_BYTES = 4

# What transformers' configuration class of each architecture assumes for a field that config.json leaves out.
# `head_dim: None` means hidden_size / num_attention_heads, `num_key_value_heads: None` means num_attention_heads.
_COMMON: dict[str, Any] = {
    "num_key_value_heads": None,
    "head_dim": None,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "bos_token_id": None,
    "eos_token_id": None,
}
_QWEN = {**_COMMON, "num_key_value_heads": 32, "max_position_embeddings": 32768}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {**_COMMON, "bos_token_id": 1, "eos_token_id": 2},
    "MistralForCausalLM": {
        **_COMMON,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "Qwen2ForCausalLM": _QWEN,
    "Qwen3ForCausalLM": {**_QWEN, "head_dim": 128},
}
_ARCHITECTURE_BY_MODEL_TYPE = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
SUPPORTED_ARCHITECTURES = tuple(_DEFAULTS)
# Fields that each type of rotary embedding needs besides rope_theta.
_ROPE_FIELDS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
_MAX_SIZE = 2**31
_SLIDING_WINDOW = 4096  # transformers' default for Mistral and, where switched on, for Qwen
_MAX_WINDOW_LAYERS = 28  # transformers' default for Qwen: the layers below have full attention


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """A decoder-only transformer. Field names are Hugging Face's; sizes are element counts.

    `rope_scaling` is the checkpoint's dictionary as is ({"rope_type": ..., "factor": ...}), or None.
    `sliding_window` is in tokens, None for full attention; `full_attention_layers` are those that it leaves out.
    `max_position_embeddings` is the trained context length.
    `sampling_defaults` are what requests get that leave it open, by the fields of SamplingParams.
    """

    architecture: str  # e.g. "LlamaForCausalLM"
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: Mapping[str, Any] | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False  # on q, k and v
    attention_output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # RMSNorm over each head's q and k (Qwen3)
    sliding_window: int | None = None
    full_attention_layers: tuple[int, ...] = ()
    hidden_act: str = "silu"
    torch_dtype: str = "bfloat16"
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    sampling_defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> "ModelInfo":
        """Read a Hugging Face config.json, or what `gguf_config` makes of a GGUF header.

        A field left out has the default of transformers' configuration class for that architecture; the sizes of the
        network have none. `extra` holds "rope_freq_factors" where a GGUF file brings them: divisors of the head_dim / 2
        rotary frequencies.

        Raises:
            ValueError: the architecture or something it uses is not supported, or a field is missing or impossible.
        """
        reader = _ConfigReader(config)
        rope_theta, rope_scaling = reader.rope()
        sliding_window, full_attention_layers = reader.sliding_window()
        num_attention_heads = reader.size("num_attention_heads")
        hidden_size = reader.size("hidden_size")
        head_dim = reader.head_dim(hidden_size, num_attention_heads)
        factors = config.get("rope_freq_factors")
        return cls(
            architecture=reader.architecture,
            vocab_size=reader.size("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=reader.size("intermediate_size"),
            num_hidden_layers=reader.size("num_hidden_layers"),
            num_attention_heads=num_attention_heads,
            num_key_value_heads=reader.num_key_value_heads(num_attention_heads),
            head_dim=head_dim,
            max_position_embeddings=reader.size("max_position_embeddings"),
            rms_norm_eps=reader.number("rms_norm_eps"),
            rope_theta=rope_theta,
            rope_scaling=rope_scaling,
            tie_word_embeddings=reader.flag("tie_word_embeddings"),
            attention_bias=reader.attention_bias(),
            attention_output_bias=reader.architecture != "Qwen2ForCausalLM" and reader.attention_bias(),
            mlp_bias=reader.architecture == "LlamaForCausalLM" and reader.flag("mlp_bias"),
            qk_norm=reader.architecture == "Qwen3ForCausalLM",
            sliding_window=sliding_window,
            full_attention_layers=full_attention_layers,
            hidden_act=reader.hidden_act(),
            torch_dtype=reader.torch_dtype(),
            bos_token_id=next(iter(reader.token_ids("bos_token_id")), None),
            eos_token_ids=reader.token_ids("eos_token_id"),
            extra={} if factors is None else {"rope_freq_factors": tuple(factors)},
        )

    def kv_bytes_per_token(self, dtype: str) -> int:
        """Bytes of keys and values of one token over all layers; int8 and fp8 have a scale to each head."""
        head_bytes = self.head_dim * BYTES_BY_DTYPE[dtype] if dtype in BYTES_BY_DTYPE else self.head_dim + _SCALE_BYTES
        return 2 * self.num_hidden_layers * self.num_key_value_heads * head_bytes

    @property
    def num_parameters(self) -> int:
        """Weights of the embedding, the layers and the head; norms and biases are left out."""
        attention = self.hidden_size * self.head_dim * (2 * self.num_attention_heads + 2 * self.num_key_value_heads)
        layer = attention + 3 * self.hidden_size * self.intermediate_size
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return embeddings + self.num_hidden_layers * layer


class _ConfigReader:
    """Typed, checked access to a config.json with the defaults of its architecture."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.architecture = _architecture(config)
        self.defaults = _DEFAULTS[self.architecture]
        for name in ("quantization_config", "compression_config"):
            if isinstance(config.get(name), Mapping):
                method = config[name].get("quant_method", "unknown method")
                raise ValueError(f"{name} ({method}) is not supported yet; use the unquantized model or GGUF")

    def size(self, name: str) -> int:
        """A positive integer."""
        value = self._value(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < _MAX_SIZE:
            raise ValueError(f"{name} must be a positive integer, got {value!r}")
        return value

    def number(self, name: str) -> float:
        """A positive, finite number."""
        return _positive_number(name, self._value(name))

    def flag(self, name: str) -> bool:
        """A boolean; false where it is left out, as in transformers."""
        value = self.config.get(name, False)
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be true or false, got {value!r}")
        return value

    def num_key_value_heads(self, num_attention_heads: int) -> int:
        if self.config.get("num_key_value_heads", self.defaults["num_key_value_heads"]) is None:
            return num_attention_heads
        heads = self.size("num_key_value_heads")
        if num_attention_heads % heads:
            raise ValueError(
                f"num_attention_heads {num_attention_heads} is not a multiple of num_key_value_heads {heads}"
            )
        return heads

    def head_dim(self, hidden_size: int, num_attention_heads: int) -> int:
        if self.config.get("head_dim", self.defaults["head_dim"]) is not None:
            head_dim = self.size("head_dim")
        elif hidden_size % num_attention_heads:
            raise ValueError(
                f"hidden_size {hidden_size} is not a multiple of num_attention_heads "
                f"{num_attention_heads}, and head_dim is missing"
            )
        else:
            head_dim = hidden_size // num_attention_heads
        if head_dim % 2:
            raise ValueError(f"head_dim must be even for rotary embeddings, got {head_dim}")
        return head_dim

    def attention_bias(self) -> bool:
        """Whether q, k and v have a bias: always in Qwen2, never in Mistral, else the config says."""
        if self.architecture == "Qwen2ForCausalLM":
            return True
        return self.architecture != "MistralForCausalLM" and self.flag("attention_bias")

    def hidden_act(self) -> str:
        name = self._value("hidden_act")
        if name not in ("silu", "swish"):
            raise ValueError(f"hidden_act {name!r} is not supported yet; supported: silu")
        return "silu"

    def torch_dtype(self) -> str:
        """The type of the weights; float32 where the config names none, as in transformers."""
        value = self.config.get("dtype") or self.config.get("torch_dtype") or "float32"
        name = str(value).removeprefix("torch.")
        if name not in BYTES_BY_DTYPE:
            raise ValueError(f"dtype {name!r} is not supported; supported: {', '.join(BYTES_BY_DTYPE)}")
        return name

    def token_ids(self, name: str) -> tuple[int, ...]:
        """Ids given as an integer, a list or null; repeated ones once."""
        value = self.config.get(name, self.defaults[name])
        ids = cast(list[Any], value if isinstance(value, list) else [] if value is None else [value])
        for token in ids:
            if not isinstance(token, int) or isinstance(token, bool) or token < 0:
                raise ValueError(f"{name} must be a token id or a list of them, got {value!r}")
        return tuple(dict.fromkeys(ids))

    def rope(self) -> tuple[float, dict[str, Any] | None]:
        """(rope_theta, scaling or None) from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling`."""
        name = "rope_scaling" if self.config.get("rope_scaling") else "rope_parameters"
        given = self._mapping(name, self.config.get(name) or {})
        if set(given) == {"full_attention"}:
            given = self._mapping(name, given["full_attention"])
        if any(isinstance(value, Mapping) for value in given.values()):
            raise ValueError(f"{name} that differs between layers is not supported yet")
        rope = dict(given)
        theta = rope.pop("rope_theta", None)
        theta = self._value("rope_theta") if theta is None else theta
        rope_type = rope.pop("rope_type", rope.pop("type", "default"))
        if not isinstance(rope_type, str) or rope_type not in _ROPE_FIELDS:
            raise ValueError(f"{name} of type {rope_type!r} is not supported yet; supported: {', '.join(_ROPE_FIELDS)}")
        partial = rope.pop("partial_rotary_factor", self.config.get("partial_rotary_factor"))
        if partial not in (None, 1, 1.0):
            raise ValueError(f"partial_rotary_factor {partial} is not supported yet; supported: 1")
        if rope_type == "default":
            return _positive_number("rope_theta", theta), None
        if rope_type == "llama3":
            rope.setdefault("original_max_position_embeddings", self.size("max_position_embeddings"))
        for part in _ROPE_FIELDS[rope_type]:
            _positive_number(f"{name}.{part}", rope.get(part))
        return _positive_number("rope_theta", theta), {"rope_type": rope_type, **rope}

    def sliding_window(self) -> tuple[int | None, tuple[int, ...]]:
        """The window, None where no layer has one or it never cuts anything off; and the layers without it."""
        if self.architecture == "LlamaForCausalLM":
            return None, ()
        uses_window = self.architecture == "MistralForCausalLM" or self.flag("use_sliding_window")
        if not uses_window or self.config.get("sliding_window", _SLIDING_WINDOW) is None:
            return None, ()
        window = self.size("sliding_window") if "sliding_window" in self.config else _SLIDING_WINDOW
        num_layers = self.size("num_hidden_layers")
        full = self._full_attention_layers(num_layers)
        if len(full) == num_layers or window >= self.size("max_position_embeddings"):
            return None, ()
        return window, full

    def _full_attention_layers(self, num_layers: int) -> tuple[int, ...]:
        if self.architecture == "MistralForCausalLM":
            return ()
        layer_types = self.config.get("layer_types")
        if layer_types is not None:
            if not isinstance(layer_types, list) or len(cast(list[Any], layer_types)) != num_layers:
                raise ValueError(f"layer_types must be a list with an entry for each of the {num_layers} layers")
            kinds = enumerate(cast(list[Any], layer_types))
            return tuple(layer for layer, kind in kinds if kind != "sliding_attention")
        first = self.config.get("max_window_layers", _MAX_WINDOW_LAYERS)
        if not isinstance(first, int):
            raise ValueError(f"max_window_layers must be an integer, got {first!r}")
        return tuple(range(min(max(first, 0), num_layers)))

    def _mapping(self, name: str, value: Any) -> Mapping[str, Any]:  # noqa: ANN401 (any JSON value)
        if not isinstance(value, Mapping):
            raise ValueError(f"{name} must be an object, got {value!r}")
        return cast(Mapping[str, Any], value)

    def _value(self, name: str) -> Any:  # noqa: ANN401 (any JSON value)
        value = self.config.get(name)
        value = self.defaults.get(name) if value is None else value
        if value is None:
            raise ValueError(f"{name} is missing")
        return value


def _architecture(config: Mapping[str, Any]) -> str:
    """The first supported entry of `architectures`, or the architecture of `model_type` where that list is missing."""
    listed: Any = config.get("architectures") or []
    if not isinstance(listed, list):
        raise ValueError(f"architectures must be a list of names, got {listed!r}")
    names = [str(name) for name in cast(list[Any], listed)]
    model_type = config.get("model_type")
    if not names and isinstance(model_type, str) and model_type in _ARCHITECTURE_BY_MODEL_TYPE:
        return _ARCHITECTURE_BY_MODEL_TYPE[model_type]
    for name in names:
        if name in _DEFAULTS:
            return name
    supported = ", ".join(SUPPORTED_ARCHITECTURES)
    if not names:
        raise ValueError(f"architectures is missing; supported: {supported}")
    nearest = difflib.get_close_matches(names[0], SUPPORTED_ARCHITECTURES, n=1, cutoff=0.8)
    hint = f" (nearest: {nearest[0]})" if nearest else ""
    raise ValueError(f"architecture {names[0]!r} is not supported; supported: {supported}{hint}")


def _positive_number(name: str, value: Any) -> float:  # noqa: ANN401 (any JSON value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value <= sys.float_info.max:
        raise ValueError(f"{name} must be a positive number, got {value!r}")
    return float(value)
