"""RMSNorm (Zhang and Sennrich 2019, arXiv 1910.07467), over the hidden size and over each head.

Shapes: T tokens, D hidden size or head size, H heads.
"""

import torch

from pelton.kernels.cpu import ELEMENT_TYPES, extension
from pelton.ops import reference


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """y = x / sqrt(mean(x²) + eps) · weight in float32, rounded once to the type of x.

    With a residual, residual += x comes first, **in place**, and its rounded sum is what is normalized.

    Args:
        x: [T, D] float32 or bfloat16; rows may be strided, their elements are contiguous.
        weight: [D] contiguous, float32 or bfloat16.
        residual: [T, D] in the type of x, rows may be strided; overwritten.

    Returns:
        y [T, D], a new tensor, and the residual stream after this point [T, D]: `residual`, or x where there was none.
    """
    if extension is None or not x.is_cpu:
        residual = x if residual is None else residual.add_(x)
        return reference.rms_norm(residual, weight, eps), residual
    num_rows, size = x.shape
    assert x.stride(1) == 1 and weight.shape == (size,) and weight.is_contiguous()
    out = torch.empty(num_rows, size, dtype=x.dtype)
    residual_address, residual_stride = 0, 0
    if residual is not None:
        assert residual.shape == x.shape and residual.dtype is x.dtype and residual.stride(1) == 1
        residual_address, residual_stride = residual.data_ptr(), residual.stride(0)
    extension.rms_norm(
        x.data_ptr(), x.stride(0), 0, out.data_ptr(), size, 0, residual_address, residual_stride,
        ELEMENT_TYPES[x.dtype], weight.data_ptr(), ELEMENT_TYPES[weight.dtype], eps, num_rows, 1, size,
    )  # fmt: skip
    return out, x if residual is None else residual


def head_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
    """RMSNorm over the last dimension of x [T, H, D], **in place**; x may be a view whose heads are contiguous.

    `weight` is [D] contiguous; types and rounding are those of rms_norm.
    """
    if extension is None or not x.is_cpu:
        x.copy_(reference.rms_norm(x, weight, eps))
        return
    num_tokens, num_heads, size = x.shape
    token_stride, head_stride, element_stride = x.stride()
    assert element_stride == 1 and weight.shape == (size,) and weight.is_contiguous()
    address = x.data_ptr()
    extension.rms_norm(
        address, token_stride, head_stride, address, token_stride, head_stride, 0, 0,
        ELEMENT_TYPES[x.dtype], weight.data_ptr(), ELEMENT_TYPES[weight.dtype], eps, num_tokens, num_heads, size,
    )  # fmt: skip
