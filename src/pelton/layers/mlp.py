"""The gated feed-forward layer (SwiGLU, arXiv 2002.05202). Shapes: T tokens, D hidden size."""

import torch
from torch import nn

from pelton.layers.context import LayerContext
from pelton.layers.linear import Linear


class GatedMLP(nn.Module):
    """down(silu(gate(x)) · up(x)), gate and up in one product."""

    def __init__(self, context: LayerContext, hidden_size: int, intermediate_size: int, *, bias: bool = False) -> None:
        super().__init__()
        parts = {"gate_proj": intermediate_size, "up_proj": intermediate_size}
        self.gate_up_proj = Linear(context, hidden_size, parts, bias=bias, gated=True)
        self.down_proj = Linear(context, intermediate_size, {"down_proj": hidden_size}, bias=bias)

    def forward(self, x: torch.Tensor, stream: torch.Tensor) -> None:
        """x [T, D] -> added to the residual stream [T, D], **in place**."""
        self.down_proj.add_to(stream, self.gate_up_proj.forward_gated(x))
