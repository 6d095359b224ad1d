"""The paged KV cache of one layer: its layout, its allocation, and writing new tokens into it.

T tokens, K KV heads, D head size, P pages, S tokens of a page, x = 4 bytes in elements.

    key_cache    [P, K, D / x, S, x]   transposed inside a page: the same x dimensions of 16 keys fill one vector
    value_cache  [P, K, S / x, D, x]   x keys side by side, so that 16 dimensions of x values fill one vector

A page is one piece of memory: the keys of all heads, then the values. A token's *slot* is page * S + offset; slot -1
writes nothing. The page stride is free, the rest is contiguous.
"""

import torch
from torch import Tensor

from pelton.kernels.cpu import ELEMENT_TYPES, extension
from pelton.ops.reference_attention import reference_write_kv


def page_bytes(num_kv_heads: int, page_size: int, head_dim: int, dtype: torch.dtype) -> int:
    """Memory of one page of one layer."""
    return 2 * num_kv_heads * page_size * head_dim * dtype.itemsize


def view_kv(
    memory: Tensor, num_kv_heads: int, page_size: int, head_dim: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Key and value cache of one layer in `memory`, uint8, `page_bytes` a page.

    `head_dim` and `page_size` must be even for 16-bit types.
    """
    x = 4 // dtype.itemsize
    elements = memory.view(dtype).view(-1, 2, num_kv_heads, page_size * head_dim)
    keys = elements[:, 0].unflatten(2, (head_dim // x, page_size, x))
    values = elements[:, 1].unflatten(2, (page_size // x, head_dim, x))
    return keys, values


def allocate_kv(
    num_pages: int, num_kv_heads: int, page_size: int, head_dim: int, dtype: torch.dtype, device: torch.device | str
) -> tuple[Tensor, Tensor]:
    """Uninitialized key and value cache of one layer; see `view_kv`."""
    num_bytes = num_pages * page_bytes(num_kv_heads, page_size, head_dim, dtype)
    memory = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    return view_kv(memory, num_kv_heads, page_size, head_dim, dtype)


def write_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    """Store the keys and values of new tokens.

    Args:
        key: [T, K, D], fp32 or bf16, any strides over T and K, none over D; converted to the cache's type.
        value: like `key`.
        key_cache: [P, K, D / x, S, x].
        value_cache: [P, K, S / x, D, x].
        slots: [T] int64; -1 writes nothing. No two tokens share a slot.
    """
    if runs_on_cpu_kernel(key, value_cache):
        cpu_write_kv(key, value, key_cache, value_cache, slots)
    else:
        reference_write_kv(key, value, key_cache, value_cache, slots)


def cpu_write_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    """`write_kv` in csrc."""
    assert extension is not None
    num_tokens, num_kv_heads, head_dim = key.shape
    extension.write_kv(
        key.data_ptr(),
        value.data_ptr(),
        key_cache.data_ptr(),
        value_cache.data_ptr(),
        slots.data_ptr(),
        num_tokens,
        num_kv_heads,
        head_dim,
        key_cache.shape[3],
        *head_strides(key),
        *head_strides(value),
        key_cache.stride(0),
        value_cache.stride(0),
        ELEMENT_TYPES[key.dtype],
        ELEMENT_TYPES[key_cache.dtype],
    )


def head_strides(heads: Tensor) -> tuple[int, int]:
    """Strides over T and heads of [T, heads, D] tokens, whose last dimension must be contiguous."""
    token_stride, head_stride, element_stride = heads.stride()
    assert element_stride == 1
    return token_stride, head_stride


def runs_on_cpu_kernel(heads: Tensor, value_cache: Tensor) -> bool:
    """Whether the kernels of csrc take these [T, heads, D] tokens with this cache."""
    _, _, num_groups, head_dim, x = value_cache.shape
    return (
        extension is not None
        and value_cache.is_cpu
        and heads.dtype in ELEMENT_TYPES
        and value_cache.dtype in ELEMENT_TYPES
        and head_dim % 16 == 0
        and num_groups * x % 16 == 0
    )
