"""ModelInfo: what scheduler, planner, server and model code need to know of a model, without its weights."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

BYTES_BY_DTYPE = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """A decoder-only transformer. Field names are Hugging Face's; sizes are element counts.

    `rope_scaling` is the checkpoint's dictionary as is ({"rope_type": ..., "factor": ...}), or None.
    `sliding_window` is in tokens, None for full attention. `max_position_embeddings` is the trained context length.
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
    hidden_act: str = "silu"
    torch_dtype: str = "bfloat16"
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def kv_bytes_per_token(self, dtype: str) -> int:
        """Bytes of keys and values of one token over all layers."""
        return 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim * BYTES_BY_DTYPE[dtype]

    @property
    def num_parameters(self) -> int:
        """Weights of the embedding, the layers and the head; norms and biases are left out."""
        attention = self.hidden_size * self.head_dim * (2 * self.num_attention_heads + 2 * self.num_key_value_heads)
        layer = attention + 3 * self.hidden_size * self.intermediate_size
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return embeddings + self.num_hidden_layers * layer
