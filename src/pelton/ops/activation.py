"""The gate of a SwiGLU layer (Shazeer 2020, arXiv 2002.05202). Shapes: T tokens, I intermediate size."""

import torch

from pelton.kernels.cpu import ELEMENT_TYPES, extension
from pelton.ops import reference


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) · up for gate_up [T, 2I] = gate beside up: [T, I] in float32, rounded once to the type of gate_up.

    float32 or bfloat16; rows may be strided, their elements are contiguous.
    """
    if extension is None or not gate_up.is_cpu:
        return reference.silu_mul(gate_up)
    num_rows, width = gate_up.shape
    assert width % 2 == 0 and gate_up.stride(1) == 1
    out = torch.empty(num_rows, width // 2, dtype=gate_up.dtype)
    extension.silu_mul(
        gate_up.data_ptr(), gate_up.stride(0), out.data_ptr(), width // 2, ELEMENT_TYPES[gate_up.dtype], num_rows,
        width // 2,
    )  # fmt: skip
    return out
