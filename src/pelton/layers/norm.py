"""RMSNorm (Zhang and Sennrich 2019). Shapes: T tokens, D hidden size."""

import torch
from torch import nn

from pelton.formats.slot import WeightSlot
from pelton.layers.context import LayerContext
from pelton.ops.norm import rms_norm


class RMSNorm(nn.Module):
    """y = x / sqrt(mean(x²) + eps) · weight, from the residual stream to the type of the next product's input."""

    def __init__(self, context: LayerContext, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self._scratch = context.scratch
        self._out_dtype = context.input_dtype
        self.weight = torch.empty(size, dtype=context.dtype, device=context.device)

    def forward(self, stream: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        """[T, D] float32 -> [T, D], or [S, D] of the `rows` [S] int64 only."""
        num_rows = stream.shape[0] if rows is None else rows.shape[0]
        out = self._scratch.empty(num_rows, stream.shape[1], self._out_dtype)
        return rms_norm(stream, self.weight, self.eps, rows=rows, out=out)

    def weight_slots(self, path: str) -> dict[str, WeightSlot]:
        return {f"{path}.weight": WeightSlot(tuple(self.weight.shape), self.weight.copy_)}
