"""The paged KV cache of one layer: its layout and its types.

T tokens, K KV heads, D head size, P pages, S tokens of a page, x = 4 bytes in elements.

    keys          [P, K, D / x, S, x]   transposed inside a page: the same x dimensions of 16 keys fill one vector
    values        [P, K, S / x, D, x]   x keys side by side, so that 16 dimensions of x values fill one vector
    key_scales    [P, K, S] fp32        of the 8-bit types: an element stands for itself times the scale of its token
    value_scales  [P, K, S] fp32        and head, which is their largest magnitude / the largest one of the type

A page is one piece of memory: the keys of all heads, the values, then the scales. A token's *slot* is page * S +
offset; slot -1 writes nothing. The page stride is free, the rest is contiguous.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from pelton.kernels.cpu import ELEMENT_TYPES, extension

# The largest magnitude of the types that are stored with a scale.
LARGEST_SCALED = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
CACHE_TYPES = {**ELEMENT_TYPES, torch.int8: 2, torch.float8_e4m3fn: 3}  # csrc/element_type.h
SCALE_BYTES = 4


@dataclass(frozen=True, slots=True)
class KVCache:
    """One layer's cache; the file's docstring has the shapes. Scales are there for 8-bit types only."""

    keys: Tensor
    values: Tensor
    key_scales: Tensor | None = None
    value_scales: Tensor | None = None

    @property
    def dtype(self) -> torch.dtype:
        return self.keys.dtype

    @property
    def num_kv_heads(self) -> int:
        return self.keys.shape[1]

    @property
    def page_size(self) -> int:
        return self.keys.shape[3]

    @property
    def head_dim(self) -> int:
        return self.values.shape[3]

    def addresses(self) -> tuple[int, int, int, int]:
        """Of keys, values and their scales; 0 where there are none."""
        return (
            self.keys.data_ptr(),
            self.values.data_ptr(),
            0 if self.key_scales is None else self.key_scales.data_ptr(),
            0 if self.value_scales is None else self.value_scales.data_ptr(),
        )

    def page_strides(self) -> tuple[int, int, int]:
        """Of keys, values and scales, in elements."""
        if self.key_scales is None or self.value_scales is None:
            return self.keys.stride(0), self.values.stride(0), 0
        assert self.key_scales.stride(0) == self.value_scales.stride(0)
        return self.keys.stride(0), self.values.stride(0), self.key_scales.stride(0)


def page_bytes(num_kv_heads: int, page_size: int, head_dim: int, dtype: torch.dtype) -> int:
    """Memory of one page of one layer."""
    return 2 * num_kv_heads * page_size * (head_dim * dtype.itemsize + (SCALE_BYTES if dtype in LARGEST_SCALED else 0))


def view_kv(memory: Tensor, num_kv_heads: int, page_size: int, head_dim: int, dtype: torch.dtype) -> KVCache:
    """The cache of one layer in `memory`, uint8, `page_bytes` a page.

    `head_dim` and `page_size` must be multiples of x.
    """
    x = 4 // dtype.itemsize
    pages = memory.view(-1, page_bytes(num_kv_heads, page_size, head_dim, dtype))
    part_bytes = num_kv_heads * page_size * head_dim * dtype.itemsize
    keys, values = (
        pages[:, begin : begin + part_bytes].view(dtype).unflatten(1, (num_kv_heads, *shape))
        for begin, shape in ((0, (head_dim // x, page_size, x)), (part_bytes, (page_size // x, head_dim, x)))
    )
    if dtype not in LARGEST_SCALED:
        return KVCache(keys, values)
    scales = pages[:, 2 * part_bytes :].view(torch.float32).unflatten(1, (2, num_kv_heads, page_size))
    return KVCache(keys, values, scales[:, 0], scales[:, 1])


def allocate_kv(
    num_pages: int, num_kv_heads: int, page_size: int, head_dim: int, dtype: torch.dtype, device: torch.device | str
) -> KVCache:
    """Uninitialized cache of one layer; see `view_kv`."""
    num_bytes = num_pages * page_bytes(num_kv_heads, page_size, head_dim, dtype)
    memory = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    return view_kv(memory, num_kv_heads, page_size, head_dim, dtype)


def head_strides(heads: Tensor) -> tuple[int, int]:
    """Strides over T and heads of [T, heads, D] tokens, whose last dimension must be contiguous."""
    token_stride, head_stride, element_stride = heads.stride()
    assert element_stride == 1
    return token_stride, head_stride


def runs_on_cpu_kernel(heads: Tensor, kv: KVCache) -> bool:
    """Whether the kernels of csrc take these [T, heads, D] tokens with this cache."""
    return (
        extension is not None
        and kv.values.is_cpu
        and heads.dtype in ELEMENT_TYPES
        and kv.dtype in CACHE_TYPES
        and kv.head_dim % 16 == 0
        and kv.page_size % 16 == 0
    )
