"""The gate of a SwiGLU layer (Shazeer 2020, arXiv 2002.05202). Shapes: T tokens, I intermediate size."""

import torch

from pelton.kernels.cpu import ELEMENT_TYPES, extension
from pelton.ops import reference


def silu_mul(gate_up: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """silu(gate) · up for gate_up [T, 2I] = gate beside up: [T, I] in float32, rounded once to the type of gate_up.

    float32 or bfloat16; rows may be strided, their elements are contiguous. `out` [T, I] contiguous, of
    that type, is written to; a new tensor by default.
    """
    num_rows, width = gate_up.shape
    if out is None:
        out = torch.empty(num_rows, width // 2, dtype=gate_up.dtype, device=gate_up.device)
    if extension is None or not gate_up.is_cpu:
        return out.copy_(reference.silu_mul(gate_up))
    assert width % 2 == 0 and gate_up.stride(1) == 1
    assert out.shape == (num_rows, width // 2) and out.is_contiguous() and out.dtype is gate_up.dtype
    extension.silu_mul(
        gate_up.data_ptr(), gate_up.stride(0), out.data_ptr(), width // 2, ELEMENT_TYPES[gate_up.dtype], num_rows,
        width // 2,
    )  # fmt: skip
    return out
