"""Attention, rotary embedding and KV writes in plain torch: the fallback on any device, and the oracle of the tests.

T tokens, H query heads, K KV heads, D head size, P pages, S tokens of a page, N keys of a row.
"""

import torch
from torch import Tensor

from pelton.ops.kv import LARGEST_SCALED, KVCache

SMALLEST_SCALE = 1e-30  # csrc/rope.h
SMALLEST_NORMAL = 2.0**-6  # of e4m3


def reference_paged_attention(
    query: Tensor,
    kv: KVCache,
    row_starts: Tensor,
    context_lens: Tensor,
    page_table: Tensor,
    scale: float,
    window: int | None,
    softcap: float,
) -> Tensor:
    """`ops.attention.paged_attention`, a row at a time in fp32."""
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    starts = row_starts.tolist()
    for row, context_len in enumerate(context_lens.tolist()):
        tokens = slice(starts[row], starts[row + 1])
        if starts[row] == starts[row + 1]:
            continue
        keys, values = gather_row(kv, page_table[row], context_len)
        out[tokens] = attend_row(query[tokens].float(), keys, values, scale, window, softcap).to(query.dtype)
    return out


def gather_row(kv: KVCache, pages: Tensor, context_len: int) -> tuple[Tensor, Tensor]:
    """Keys and values of positions 0..context_len of a row, [N, K, D] fp32 each."""
    used = pages[: -(-context_len // kv.page_size)].long()
    keys = kv.keys[used].float().permute(0, 3, 1, 2, 4).reshape(-1, kv.num_kv_heads, kv.head_dim)
    values = kv.values[used].float().permute(0, 2, 4, 1, 3).reshape(-1, kv.num_kv_heads, kv.head_dim)
    if kv.key_scales is not None and kv.value_scales is not None:
        keys *= kv.key_scales[used].transpose(1, 2).reshape(-1, kv.num_kv_heads, 1)
        values *= kv.value_scales[used].transpose(1, 2).reshape(-1, kv.num_kv_heads, 1)
    return keys[:context_len], values[:context_len]


def attend_row(query: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None, softcap: float) -> Tensor:
    """Attention of a row's last tokens, query [n, H, D], over its keys and values [N, K, D]; all fp32."""
    num_tokens, num_heads, _ = query.shape
    group = num_heads // keys.shape[1]
    keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->hqk", query, keys) * scale
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    context_len = keys.shape[0]
    key_positions = torch.arange(context_len, device=query.device)
    positions = torch.arange(context_len - num_tokens, context_len, device=query.device)[:, None]
    visible = key_positions <= positions
    if window is not None:
        visible &= positions - key_positions < window
    weights = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, values)


def reference_write_kv(key: Tensor, value: Tensor, kv: KVCache, slots: Tensor) -> None:
    """`ops.rope.write_kv`."""
    _, _, num_chunks, page_size, x = kv.keys.shape
    written = slots >= 0
    slots, key, value = slots[written], key[written], value[written]
    pages, offsets = slots // page_size, slots % page_size
    if kv.key_scales is not None and kv.value_scales is not None:
        key, kv.key_scales[pages, :, offsets] = quantize_heads(key, kv.dtype)
        value, kv.value_scales[pages, :, offsets] = quantize_heads(value, kv.dtype)
    chunks = key.reshape(key.shape[0], key.shape[1], num_chunks, x)  # [T, K, D / x, x]
    # As bytes where torch does not index the type.
    keys, values = (part.view(torch.int8) if x == 4 else part for part in (kv.keys, kv.values))
    keys[pages, :, :, offsets] = chunks.to(kv.dtype).view(keys.dtype)
    values[pages, :, offsets // x, :, offsets % x] = value.to(kv.dtype).view(values.dtype)


def quantize_heads(heads: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """[T, K, D] in the units of a scale each, rounded to what int8 or e4m3 holds but fp32; and the scales [T, K]."""
    heads = heads.float()
    scales = heads.abs().amax(dim=-1) / LARGEST_SCALED[dtype]
    # Heads that are next to nothing become zeros: the inverse of their scale would overflow.
    inverse = torch.where(scales < SMALLEST_SCALE, 0.0, 1.0 / scales)
    scaled = heads * inverse[..., None]
    if dtype is torch.int8:
        return scaled.round(), scales
    return torch.where(scaled.abs() < SMALLEST_NORMAL, 0.0, scaled).to(dtype).float(), scales


def reference_rotate(heads: Tensor, cos_sin: Tensor, positions: Tensor) -> Tensor:
    """The first rotary_dim dimensions of [T, heads, D] rotated, fp32; halves are paired (GPT-NeoX style)."""
    half = cos_sin.shape[1] // 2
    cos, sin = cos_sin[positions][:, None].split(half, dim=-1)  # [T, 1, half] each
    first, second, rest = heads.float().split([half, half, heads.shape[2] - 2 * half], dim=-1)
    rotated = (first * cos - second * sin, second * cos + first * sin, rest)
    return torch.cat(rotated, dim=-1)


def reference_rope_and_cache(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    kv: KVCache,
    slots: Tensor,
) -> Tensor:
    """`ops.rope.rope_and_cache`."""
    reference_write_kv(reference_rotate(key, cos_sin, positions), value, kv, slots)
    return reference_rotate(query, cos_sin, positions).to(query.dtype)
