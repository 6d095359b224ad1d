"""Products with int8 weights, one scale an output: activations become int8 too, sums of 64 inputs are exact.

A row's bits depend neither on the rows beside it nor, but for the last bits of a gate, on the instruction set; see
csrc/int8.h.

Shapes: T tokens, K inputs, N outputs, I intermediate size.
"""

from typing import Protocol

import torch

from pelton.kernels.cpu import ELEMENT_TYPES, extension


class Int8Weight(Protocol):
    """What a product needs of formats.int8.Int8 (formats stand above ops)."""

    @property
    def data(self) -> torch.Tensor: ...

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def gated(self) -> bool: ...


def int8_linear(
    x: torch.Tensor,
    weight: Int8Weight,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    *,
    out: torch.Tensor | None = None,
    accumulate: bool = False,
) -> torch.Tensor:
    """y = x Wᵀ + b with x rounded to int8: each 64 elements of a row are rotated by a Hadamard matrix, as those of the
    weight are, and rounded to multiples of their largest magnitude / 127.

    With a gated weight, gate [I, K] over up [I, K], y = silu(gate) · up of the two halves of x Wᵀ + b, in float32
    until it is rounded once. A row with a value that is not finite gives outputs that are not finite.

    Args:
        x: [T, K] float32 or bfloat16; rows may be strided, their elements are contiguous.
        weight: [N, K], gated N = 2I.
        bias: [N] contiguous, float32 or bfloat16.
        out_dtype: float32 or bfloat16, that of `out` or else of x by default.
        out: [T, N], gated [T, I], to write to, its elements contiguous; a new tensor by default.
        accumulate: add to what `out`, float32, holds.

    Returns:
        [T, N], gated [T, I]; `out` where it is given.
    """
    num_weights, num_inputs = weight.shape
    num_outputs = num_weights // 2 if weight.gated else num_weights
    num_rows, width = x.shape
    if out is None:
        assert not accumulate
        out = torch.empty(num_rows, num_outputs, dtype=out_dtype or x.dtype)
    assert width == num_inputs and (x.stride(1) == 1 or num_inputs == 1)
    assert out.shape == (num_rows, num_outputs) and (out.stride(1) == 1 or num_outputs == 1)
    assert not accumulate or out.dtype is torch.float32
    bias_address, bias_type = 0, 0
    if bias is not None:
        assert bias.shape == (num_weights,) and bias.is_contiguous()
        bias_address, bias_type = bias.data_ptr(), ELEMENT_TYPES[bias.dtype]
    assert extension is not None
    extension.int8_linear(
        x.data_ptr(), x.stride(0), ELEMENT_TYPES[x.dtype],
        weight.data.data_ptr(), weight.gated,
        bias_address, bias_type,
        out.data_ptr(), out.stride(0), ELEMENT_TYPES[out.dtype], accumulate,
        num_rows, num_outputs, num_inputs,
    )  # fmt: skip
    return out
