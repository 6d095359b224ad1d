"""Rotary position embedding of a step's queries and keys, fused with the write of its KV cache.

T tokens, H query heads, K KV heads, D head size.
"""

import torch
from torch import Tensor

from pelton.kernels.cpu import ELEMENT_TYPES, extension
from pelton.ops.kv import CACHE_TYPES, KVCache, head_strides, runs_on_cpu_kernel
from pelton.ops.reference_attention import reference_rope_and_cache, reference_write_kv


def rope_and_cache(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    kv: KVCache,
    slots: Tensor,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Rotate queries and keys (RoFormer, arXiv 2104.09864, section 3.2; halves are paired, as in GPT-NeoX), and cache.

    Rotation is in fp32. Dimensions from rotary_dim on pass through. query, key and value may be views into one packed
    projection: strides over T and heads are free.

    Args:
        query: [T, H, D], fp32 or bf16; key: [T, K, D] and value: [T, K, D] of the same type.
        cos_sin: [max_position, rotary_dim] fp32: cosines in the first half of a row, sines in the second.
        positions: [T] int64.
        kv: gets the rotated keys and the values, as `write_kv` stores them.
        slots: [T] int64; -1 caches nothing.
        out: [T, H, D] contiguous, of the query's type, to write to; a new tensor by default.

    Returns:
        The rotated query, [T, H, D], contiguous; `out` where it is given.
    """
    if runs_on_cpu_kernel(query, kv):
        return cpu_rope_and_cache(query, key, value, cos_sin, positions, kv, slots, out=out)
    rotated = reference_rope_and_cache(query, key, value, cos_sin, positions, kv, slots)
    return rotated if out is None else out.copy_(rotated)


def cpu_rope_and_cache(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    kv: KVCache,
    slots: Tensor,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """`rope_and_cache` in csrc."""
    assert extension is not None
    assert cos_sin.dtype == torch.float32
    assert cos_sin.is_contiguous()
    num_tokens, num_heads, head_dim = query.shape
    if out is None:
        out = torch.empty((num_tokens, num_heads, head_dim), dtype=query.dtype)
    assert out.shape == query.shape and out.is_contiguous() and out.dtype is query.dtype
    extension.rope_and_cache(
        query.data_ptr(),
        key.data_ptr(),
        value.data_ptr(),
        out.data_ptr(),
        cos_sin.data_ptr(),
        positions.data_ptr(),
        *kv.addresses(),
        slots.data_ptr(),
        num_tokens,
        num_heads,
        key.shape[1],
        head_dim,
        cos_sin.shape[1],
        kv.page_size,
        *head_strides(query),
        *head_strides(key),
        *head_strides(value),
        *kv.page_strides(),
        ELEMENT_TYPES[query.dtype],
        CACHE_TYPES[kv.dtype],
    )
    return out


def write_kv(key: Tensor, value: Tensor, kv: KVCache, slots: Tensor) -> None:
    """Store the keys and values of new tokens.

    Args:
        key: [T, K, D], fp32 or bf16, any strides over T and K, none over D. Converted to the cache's type; 8-bit types
            are rounded after division by the scale, and e4m3 has zeros in place of denormals, below 2^-6.
        value: like `key`.
        kv: see ops/kv.py.
        slots: [T] int64; -1 writes nothing. No two tokens share a slot.
    """
    if runs_on_cpu_kernel(key, kv):
        cpu_write_kv(key, value, kv, slots)
    else:
        reference_write_kv(key, value, kv, slots)


def cpu_write_kv(key: Tensor, value: Tensor, kv: KVCache, slots: Tensor) -> None:
    """`write_kv` in csrc."""
    assert extension is not None
    num_tokens, num_kv_heads, head_dim = key.shape
    extension.write_kv(
        key.data_ptr(),
        value.data_ptr(),
        *kv.addresses(),
        slots.data_ptr(),
        num_tokens,
        num_kv_heads,
        head_dim,
        kv.page_size,
        *head_strides(key),
        *head_strides(value),
        *kv.page_strides(),
        ELEMENT_TYPES[key.dtype],
        CACHE_TYPES[kv.dtype],
    )
