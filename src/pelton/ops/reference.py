"""The operations in plain torch: the fallback on every device without kernels of its own, and the oracle of tests.

Shapes: T tokens, K inputs, N outputs, D hidden size, H heads, I intermediate size.
"""

import torch
import torch.nn.functional as F


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out_dtype: torch.dtype) -> torch.Tensor:
    """[T, K] x [N, K] (+ [N]) -> [T, N], multiplied and added up in float32."""
    return F.linear(x.float(), weight.float(), None if bias is None else bias.float()).to(out_dtype)


def linear_into(
    out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, accumulate: bool
) -> torch.Tensor:
    """The product above, written to `out` [T, N] or added to what it holds; returns `out`."""
    product = linear(x, weight, bias, out.dtype)
    return out.add_(product) if accumulate else out.copy_(product)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, out_dtype: torch.dtype | None = None) -> torch.Tensor:
    """x / sqrt(mean(x²) + eps) · weight over the last dimension in float32, rounded once to `out_dtype` (that of x)."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight.float()).to(out_dtype or x.dtype)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """[T, 2I] -> [T, I]: silu(first half) · second half, in float32, rounded once to the type of gate_up."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (F.silu(gate) * up).to(gate_up.dtype)
