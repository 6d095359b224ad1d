"""Attention, rotary embedding and KV writes in plain torch: the fallback on any device, and the oracle of the tests.

T tokens, H query heads, K KV heads, D head size, P pages, S tokens of a page, N keys of a row.
"""

import torch
from torch import Tensor


def reference_paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
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
        keys, values = gather_row(key_cache, value_cache, page_table[row], context_len)
        out[tokens] = attend_row(query[tokens].float(), keys, values, scale, window, softcap).to(query.dtype)
    return out


def gather_row(key_cache: Tensor, value_cache: Tensor, pages: Tensor, context_len: int) -> tuple[Tensor, Tensor]:
    """Keys and values of positions 0..context_len of a row, [N, K, D] fp32 each."""
    _, num_kv_heads, _, page_size, _ = key_cache.shape
    head_dim = value_cache.shape[3]
    used = pages[: -(-context_len // page_size)].long()
    keys = key_cache[used].permute(0, 3, 1, 2, 4).reshape(-1, num_kv_heads, head_dim)
    values = value_cache[used].permute(0, 2, 4, 1, 3).reshape(-1, num_kv_heads, head_dim)
    return keys[:context_len].float(), values[:context_len].float()


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


def reference_write_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    """`ops.kv.write_kv`."""
    _, _, num_chunks, page_size, x = key_cache.shape
    written = slots >= 0
    slots, key, value = slots[written], key[written], value[written]
    pages, offsets = slots // page_size, slots % page_size
    chunks = key.reshape(key.shape[0], key.shape[1], num_chunks, x)  # [T, K, D / x, x]
    key_cache[pages, :, :, offsets] = chunks.to(key_cache.dtype)
    value_cache[pages, :, offsets // x, :, offsets % x] = value.to(value_cache.dtype)


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
    key_cache: Tensor,
    value_cache: Tensor,
    slots: Tensor,
) -> Tensor:
    """`ops.rope.rope_and_cache`."""
    reference_write_kv(reference_rotate(key, cos_sin, positions), value, key_cache, value_cache, slots)
    return reference_rotate(query, cos_sin, positions).to(query.dtype)
