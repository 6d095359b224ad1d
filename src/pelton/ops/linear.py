"""Dense matrix products in which a row's bits never depend on the rows beside it.

Library products pick their kernel, and with it the order of additions, by the number of rows. These add up each
output over ascending k whatever the number of rows and threads.

Shapes: T tokens, K inputs, N outputs.
"""

from typing import Protocol

import torch

from pelton.kernels.cpu import ELEMENT_TYPES, extension
from pelton.ops import reference


class DenseWeight(Protocol):
    """What a product needs of formats.dense.Dense (formats stand above ops)."""

    @property
    def data(self) -> torch.Tensor: ...

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def packed(self) -> bool: ...


def linear(
    x: torch.Tensor,
    weight: DenseWeight,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    *,
    out: torch.Tensor | None = None,
    accumulate: bool = False,
) -> torch.Tensor:
    """y = x Wᵀ + b, accumulated in float32.

    bf16 x and bf16 weights are multiplied in that type. Where the types differ the narrower one is widened, exactly.

    Args:
        x: [T, K] float32 or bfloat16; rows may be strided, their elements are contiguous.
        weight: [N, K].
        bias: [N] contiguous, float32 or bfloat16.
        out_dtype: float32 or bfloat16, that of `out` or else of x by default.
        out: [T, N] to write to, its elements contiguous; a new tensor by default.
        accumulate: add to what `out`, float32, holds.

    Returns:
        [T, N], `out` where it is given.
    """
    if out is None:
        assert not accumulate
        out = torch.empty(x.shape[0], weight.shape[0], dtype=out_dtype or x.dtype, device=x.device)
    if not weight.packed:
        return reference.linear_into(out, x, weight.data, bias, accumulate=accumulate)
    if x.dtype is torch.bfloat16 and weight.dtype is torch.float32:
        x = x.float()
    num_outputs, num_inputs = weight.shape
    num_rows, width = x.shape
    assert width == num_inputs and (x.stride(1) == 1 or num_inputs == 1)
    assert out.shape == (num_rows, num_outputs) and out.stride(1) == 1
    assert not accumulate or out.dtype is torch.float32
    bias_address, bias_type = 0, 0
    if bias is not None:
        assert bias.shape == (num_outputs,) and bias.is_contiguous()
        bias_address, bias_type = bias.data_ptr(), ELEMENT_TYPES[bias.dtype]
    assert extension is not None
    extension.linear(
        x.data_ptr(), x.stride(0), ELEMENT_TYPES[x.dtype],
        weight.data.data_ptr(), ELEMENT_TYPES[weight.dtype],
        bias_address, bias_type,
        out.data_ptr(), out.stride(0), ELEMENT_TYPES[out.dtype], accumulate,
        num_rows, num_outputs, num_inputs,
    )  # fmt: skip
    return out
