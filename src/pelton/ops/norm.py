"""RMSNorm (Zhang and Sennrich 2019, arXiv 1910.07467), over the hidden size and over each head.

Shapes: T tokens, D hidden size or head size, H heads.
"""

import torch

from pelton.kernels.cpu import ELEMENT_TYPES, extension
from pelton.ops import reference


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    rows: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """y = x / sqrt(mean(x²) + eps) · weight in float32, rounded once to the type of `out`.

    Args:
        x: [T, D] float32 or bfloat16; rows may be strided, their elements are contiguous.
        weight: [D] contiguous, float32 or bfloat16.
        rows: [S] int64 contiguous, the rows of x to normalize, each in [0, T); all of them by default.
        out: [T or S, D] float32 or bfloat16 to write to, not x itself; a new tensor of the type of x by default.

    Returns:
        y [T or S, D], `out` where it is given.
    """
    size = x.shape[1]
    num_rows = x.shape[0] if rows is None else rows.shape[0]
    if out is None:
        out = torch.empty(num_rows, size, dtype=x.dtype, device=x.device)
    if extension is None or not x.is_cpu:
        return out.copy_(reference.rms_norm(x if rows is None else x[rows], weight, eps, out.dtype))
    assert x.stride(1) == 1 and weight.shape == (size,) and weight.is_contiguous()
    assert out.shape == (num_rows, size) and out.stride(1) == 1
    rows_address = 0
    if rows is not None:
        assert rows.dtype is torch.int64 and rows.is_contiguous()
        rows_address = rows.data_ptr()
    extension.rms_norm(
        x.data_ptr(), x.stride(0), 0, ELEMENT_TYPES[x.dtype], rows_address,
        out.data_ptr(), out.stride(0), 0, ELEMENT_TYPES[out.dtype],
        weight.data_ptr(), ELEMENT_TYPES[weight.dtype], eps, num_rows, 1, size,
    )  # fmt: skip
    return out


def head_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
    """RMSNorm over the last dimension of x [T, H, D], **in place**; x may be a view whose heads are contiguous.

    `weight` is [D] contiguous; arithmetic and types are those of rms_norm.
    """
    if extension is None or not x.is_cpu:
        x.copy_(reference.rms_norm(x, weight, eps))
        return
    num_tokens, num_heads, size = x.shape
    token_stride, head_stride, element_stride = x.stride()
    assert element_stride == 1 and weight.shape == (size,) and weight.is_contiguous()
    address = x.data_ptr()
    extension.rms_norm(
        address, token_stride, head_stride, ELEMENT_TYPES[x.dtype], 0,
        address, token_stride, head_stride, ELEMENT_TYPES[x.dtype],
        weight.data_ptr(), ELEMENT_TYPES[weight.dtype], eps, num_tokens, num_heads, size,
    )  # fmt: skip
