"""Token embedding and the output head, which may share one weight.

Shapes: T tokens, S sampled tokens, D hidden size, V vocabulary.
"""

import torch
from torch import nn

from pelton.formats.gguf import GGUFTensor
from pelton.formats.slot import WeightSlot
from pelton.formats.weight import Weight, multiply, pack
from pelton.layers.context import LayerContext


class Embedding(nn.Module):
    """The vocabulary's vectors: looked up on the way in and, where tied, multiplied with on the way out."""

    def __init__(self, context: LayerContext, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self._context = context
        self._shape = (vocab_size, hidden_size)
        self.weight: Weight | None = None

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[T] int64 -> [T, D] float32, the residual stream."""
        assert self.weight is not None, "forward before the weights are loaded"
        stream = self._context.scratch.empty(token_ids.shape[0], self._shape[1], torch.float32)
        return self.weight.rows(token_ids, stream)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[S, D] -> [S, V] float32."""
        assert self.weight is not None, "logits before the weights are loaded"
        out = self._context.scratch.empty(hidden.shape[0], self._shape[0], torch.float32)
        return multiply(hidden, self.weight, None, out)

    def weight_slots(self, path: str) -> dict[str, WeightSlot]:
        return {f"{path}.weight": WeightSlot(self._shape, self._load, self._load)}

    def _load(self, tensor: torch.Tensor | GGUFTensor) -> None:
        # 8 bits beside layers of 4, as in GGUF files: this weight is used twice and its error is felt most.
        quantize = "int8" if self._context.quantize == "int4" else self._context.quantize
        self.weight = pack([tensor], self._context.dtype, quantize)
