"""Self-attention over the paged KV cache, with grouped queries.

Shapes: T tokens, D hidden size, Hq query heads, Hkv key-value heads, d head size.
"""

import torch
from torch import nn

from pelton.formats.slot import WeightSlot
from pelton.layers.context import Batch, LayerContext, LayerKV
from pelton.layers.linear import Linear
from pelton.model_config import ModelInfo
from pelton.ops.attention import paged_attention
from pelton.ops.norm import head_norm
from pelton.ops.rope import rope_and_cache


class HeadNorm(nn.Module):
    """RMSNorm over each head (Qwen3), in place."""

    def __init__(self, context: LayerContext, head_dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.empty(head_dim, dtype=context.dtype, device=context.device)

    def forward(self, heads: torch.Tensor) -> None:
        """[T, H, d], a view whose memory is normalized."""
        head_norm(heads, self.weight, self.eps)

    def weight_slots(self, path: str) -> dict[str, WeightSlot]:
        return {f"{path}.weight": WeightSlot(tuple(self.weight.shape), self.weight.copy_)}


class Attention(nn.Module):
    """Projections, rotary embedding, KV write and paged attention of one layer."""

    def __init__(self, context: LayerContext, info: ModelInfo, cos_sin: torch.Tensor, layer: int) -> None:
        super().__init__()
        self.num_heads = info.num_attention_heads
        self.num_kv_heads = info.num_key_value_heads
        self.head_dim = info.head_dim
        self.scale = info.head_dim**-0.5
        self.window = None if layer in info.full_attention_layers else info.sliding_window
        self.cos_sin = cos_sin
        self._scratch = context.scratch
        query_size, kv_size = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        parts = {"q_proj": query_size, "k_proj": kv_size, "v_proj": kv_size}
        self.qkv_proj = Linear(context, info.hidden_size, parts, bias=info.attention_bias)
        self.o_proj = Linear(context, query_size, {"o_proj": info.hidden_size}, bias=info.attention_output_bias)
        self.q_norm = HeadNorm(context, info.head_dim, info.rms_norm_eps) if info.qk_norm else None
        self.k_norm = HeadNorm(context, info.head_dim, info.rms_norm_eps) if info.qk_norm else None

    def forward(self, x: torch.Tensor, stream: torch.Tensor, batch: Batch, kv: LayerKV) -> None:
        """x [T, D] -> added to the residual stream [T, D], **in place**; this step's keys and values go into `kv`."""
        num_tokens, query_size = x.shape[0], self.num_heads * self.head_dim
        heads = self.qkv_proj(x).view(num_tokens, -1, self.head_dim)
        query, key, value = heads.split([self.num_heads, self.num_kv_heads, self.num_kv_heads], dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            self.q_norm(query)
            self.k_norm(key)
        rotated = self._scratch.empty(num_tokens, query_size, heads.dtype).view(num_tokens, -1, self.head_dim)
        rope_and_cache(query, key, value, self.cos_sin, batch.positions, kv, batch.slots, out=rotated)
        mixed = self._scratch.empty(num_tokens, query_size, heads.dtype)
        paged_attention(
            rotated,
            kv,
            batch.row_starts,
            batch.context_lens,
            batch.page_table,
            scale=self.scale,
            window=self.window,
            out=mixed.view(num_tokens, -1, self.head_dim),
        )
        self.o_proj.add_to(stream, mixed)
