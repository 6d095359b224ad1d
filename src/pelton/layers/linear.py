"""Linear: one matrix product for one or several of the checkpoint's projections.

Shapes: T tokens, K inputs, N outputs.
"""

from collections.abc import Mapping
from functools import partial

import torch
from torch import nn

from pelton.formats.gguf import GGUFTensor
from pelton.formats.slot import WeightSlot
from pelton.formats.weight import Weight, multiply, multiply_gated, pack
from pelton.layers.context import LayerContext
from pelton.ops.activation import silu_mul


class Linear(nn.Module):
    """y = x Wᵀ + b.

    `parts` maps the checkpoint's projection names to their output sizes, in order: fused projections such as
    {"q_proj": ..., "k_proj": ..., "v_proj": ...} become one product over their concatenated rows. With `gated` they are
    a gate and what it lets through, for `forward_gated` alone.
    """

    def __init__(
        self,
        context: LayerContext,
        in_features: int,
        parts: Mapping[str, int],
        *,
        bias: bool = False,
        gated: bool = False,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.parts = dict(parts)
        self.out_features = sum(parts.values())
        self.weight: Weight | None = None
        self.bias = torch.empty(self.out_features, dtype=torch.float32, device=context.device) if bias else None
        self._context = context
        self._gated = gated
        self._staged: dict[str, torch.Tensor | GGUFTensor] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, K] -> [T, N], in the context's dtype."""
        assert self.weight is not None, "forward before the weights are loaded"
        out = self._context.scratch.empty(x.shape[0], self.out_features, self._context.dtype)
        return multiply(x, self.weight, self.bias, out)

    def forward_gated(self, x: torch.Tensor) -> torch.Tensor:
        """silu(gate) · up, gate beside up being y: [T, K] -> [T, N / 2], for another product."""
        assert self.weight is not None, "forward before the weights are loaded"
        dtype = self._context.input_dtype if self.weight.gated else self._context.dtype
        out = self._context.scratch.empty(x.shape[0], self.out_features // 2, dtype)
        return multiply_gated(x, self.weight, self.bias, out) if self.weight.gated else silu_mul(self(x), out=out)

    def add_to(self, stream: torch.Tensor, x: torch.Tensor) -> None:
        """stream [T, N] float32 += y, **in place**, for x [T, K]."""
        assert self.weight is not None, "add_to before the weights are loaded"
        multiply(x, self.weight, self.bias, stream, accumulate=True)

    def weight_slots(self, path: str) -> dict[str, WeightSlot]:
        parent, _, _ = path.rpartition(".")
        prefix = f"{parent}." if parent else ""
        slots: dict[str, WeightSlot] = {}
        start = 0
        for part, size in self.parts.items():
            load = partial(self._load_weight, part)
            slots[f"{prefix}{part}.weight"] = WeightSlot((size, self.in_features), load, load)
            if self.bias is not None:
                loader = self.bias[start : start + size].copy_
                slots[f"{prefix}{part}.bias"] = WeightSlot((size,), loader)
            start += size
        return slots

    def _load_weight(self, part: str, tensor: torch.Tensor | GGUFTensor) -> None:
        """Pack once every part is here, so that at most one unpacked copy of this layer exists."""
        self._staged[part] = tensor
        if len(self._staged) == len(self.parts):
            self.weight = pack(
                [self._staged[name] for name in self.parts],
                self._context.dtype,
                self._context.quantize,
                gated=self._gated,
            )
            self._staged.clear()
