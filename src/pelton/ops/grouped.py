"""Products with weights of 4 or 8 bits in groups of 32 inputs: activations become int8, sums of a group are exact.

A row's bits depend neither on the rows beside it nor on the instruction set; see csrc/grouped.h.

Shapes: T tokens, K inputs, N outputs, I intermediate size.
"""

from enum import IntEnum
from typing import Protocol

import torch

from pelton.kernels.cpu import ELEMENT_TYPES, extension

GROUP_INPUTS = 32
ROTATED_INPUTS = 64  # csrc/quantized_rows.h


class GroupedKind(IntEnum):
    """GroupedKind of csrc/grouped.h."""

    FOUR_BITS = 0  # signed, -8 to 7
    FOUR_BITS_MINIMUM = 1  # unsigned, and a minimum
    EIGHT_BITS = 2  # signed


class GroupedWeight(Protocol):
    """What a product needs of formats.grouped.GroupedAffine (formats stand above ops)."""

    @property
    def data(self) -> torch.Tensor: ...

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def kind(self) -> GroupedKind: ...

    @property
    def rotated(self) -> bool: ...

    @property
    def gated(self) -> bool: ...


def grouped_linear(
    x: torch.Tensor,
    weight: GroupedWeight,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    *,
    out: torch.Tensor | None = None,
    accumulate: bool = False,
) -> torch.Tensor:
    """y = x Wᵀ + b with x rounded to int8, each 32 elements of a row to multiples of their largest magnitude / 127.

    With a rotated weight, 64 elements of a row are rotated by a Hadamard matrix first. With a gated weight, gate [I, K]
    over up [I, K], y = silu(gate) · up of the two halves of x Wᵀ + b, in float32 until it is rounded once. A row with a
    value that is not finite gives outputs that are not finite.

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
    if out is None:
        assert not accumulate
        out = torch.empty(x.shape[0], num_outputs, dtype=out_dtype or x.dtype)
    num_rows, width = x.shape
    assert width == num_inputs and x.stride(1) == 1
    assert out.shape == (num_rows, num_outputs) and out.stride(1) == 1
    assert not accumulate or out.dtype is torch.float32
    bias_address, bias_type = 0, 0
    if bias is not None:
        assert bias.shape == (num_weights,) and bias.is_contiguous()
        bias_address, bias_type = bias.data_ptr(), ELEMENT_TYPES[bias.dtype]
    assert extension is not None
    extension.grouped_linear(
        x.data_ptr(), x.stride(0), ELEMENT_TYPES[x.dtype],
        weight.data.data_ptr(), int(weight.kind), weight.rotated, weight.gated,
        bias_address, bias_type,
        out.data_ptr(), out.stride(0), ELEMENT_TYPES[out.dtype], accumulate,
        num_rows, num_outputs, num_inputs,
    )  # fmt: skip
    return out
