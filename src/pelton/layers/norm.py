"""RMSNorm (Zhang and Sennrich 2019). Shapes: T tokens, D hidden size."""

import torch
from torch import nn

from pelton.formats.slot import WeightSlot
from pelton.layers.context import LayerContext
from pelton.ops.norm import rms_norm


class RMSNorm(nn.Module):
    """y = x / sqrt(mean(x²) + eps) · weight, with the residual stream added to x first."""

    def __init__(self, context: LayerContext, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.empty(size, dtype=context.dtype, device=context.device)

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """[T, D], [T, D] or None -> (normalized [T, D], the new residual [T, D])."""
        return rms_norm(x, self.weight, self.eps, residual)

    def weight_slots(self, path: str) -> dict[str, WeightSlot]:
        return {f"{path}.weight": WeightSlot(tuple(self.weight.shape), self.weight.copy_)}
