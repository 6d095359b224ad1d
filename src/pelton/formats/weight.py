"""Weight: the formats that a layer's weight may have, how it is made and how it is multiplied by.

Shapes: T tokens, N outputs, K inputs.
"""

from collections.abc import Sequence

import torch

from pelton.formats.dense import Dense
from pelton.formats.gguf import GGUFTensor
from pelton.formats.grouped import GroupedAffine
from pelton.ops.grouped import grouped_linear
from pelton.ops.linear import linear

Weight = Dense | GroupedAffine


def pack(parts: Sequence[torch.Tensor | GGUFTensor], dtype: torch.dtype) -> Weight:
    """One weight of the rows of all `parts`, each [N of the part, K].

    Parts that all are stored in one quantized type stay in it; otherwise the weight is dense, in `dtype`.
    """
    stored = [part for part in parts if isinstance(part, GGUFTensor)]
    if len(stored) == len(parts) and len({part.type for part in stored}) == 1:
        return GroupedAffine.from_gguf(stored, dtype)
    plain = [part.dequantize(dtype) if isinstance(part, GGUFTensor) else part for part in parts]
    return Dense.from_tensor(torch.cat(plain) if len(plain) > 1 else plain[0], dtype)


def multiply(
    x: torch.Tensor, weight: Weight, bias: torch.Tensor | None, out: torch.Tensor, *, accumulate: bool = False
) -> torch.Tensor:
    """x Wᵀ + b, [T, K] -> [T, N], by the op of the weight's format: written to `out`, or added to what it holds."""
    if isinstance(weight, GroupedAffine):
        return grouped_linear(x, weight, bias, out=out, accumulate=accumulate)
    return linear(x, weight, bias, out=out, accumulate=accumulate)
