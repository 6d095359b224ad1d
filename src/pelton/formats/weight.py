"""Weight: the formats that a layer's weight may have, how it is made and how it is multiplied by.

Shapes: T tokens, N outputs, K inputs.
"""

from collections.abc import Sequence

import torch

from pelton.formats.dense import Dense
from pelton.formats.gguf import FOUR_BIT_TYPES, GGUFTensor
from pelton.formats.grouped import GroupedAffine
from pelton.formats.int8 import Int8
from pelton.kernels.cpu import extension
from pelton.ops.grouped import GROUP_INPUTS, grouped_linear
from pelton.ops.int8 import int8_linear
from pelton.ops.linear import linear

Weight = Dense | GroupedAffine | Int8


def pack(
    parts: Sequence[torch.Tensor | GGUFTensor], dtype: torch.dtype, quantize: str = "none", *, gated: bool = False
) -> Weight:
    """One weight of the rows of all `parts`, each [N of the part, K].

    Args:
        parts: plain or as stored in a GGUF file.
        dtype: of a dense weight, and of the rows that an embedding looks up.
        quantize: "int8" quantizes whatever comes. "int4" does so too, in groups of 32 inputs, but keeps parts that all
            are stored in one type of 4 bits as they are; K that is no multiple of 32 becomes int8. With "none", parts
            that all are stored in one quantized type stay in it; otherwise the weight is dense, in `dtype`.
        gated: the rows are gate over up. Formats that can are packed for `multiply_gated` and have `gated` set then.

    Raises:
        ValueError: there are no kernels for `quantize`, or a weight to quantize is not finite.
    """
    if quantize != "none" and extension is None:
        raise ValueError(f"quantize {quantize} needs the CPU kernels, which are not built; leave the setting out")
    stored = [part for part in parts if isinstance(part, GGUFTensor)]
    is_uniform = len(stored) == len(parts) and len({part.type for part in stored}) == 1
    num_inputs = parts[0].shape[1]
    if quantize == "int8" or (quantize == "int4" and num_inputs % GROUP_INPUTS):
        return Int8.quantize(parts, dtype, gated=gated)
    if quantize == "int4" and not (is_uniform and stored[0].type in FOUR_BIT_TYPES):
        return GroupedAffine.quantize(parts, dtype, gated=gated)
    if is_uniform:
        return GroupedAffine.from_gguf(stored, dtype, gated=gated)
    plain = [part.dequantize(dtype) if isinstance(part, GGUFTensor) else part for part in parts]
    return Dense.from_tensor(torch.cat(plain) if len(plain) > 1 else plain[0], dtype)


def multiply(
    x: torch.Tensor, weight: Weight, bias: torch.Tensor | None, out: torch.Tensor, *, accumulate: bool = False
) -> torch.Tensor:
    """x Wᵀ + b, [T, K] -> [T, N], by the op of the weight's format: written to `out`, or added to what it holds."""
    assert not weight.gated, "a gated weight is for multiply_gated"
    if isinstance(weight, GroupedAffine):
        return grouped_linear(x, weight, bias, out=out, accumulate=accumulate)
    if isinstance(weight, Int8):
        return int8_linear(x, weight, bias, out=out, accumulate=accumulate)
    return linear(x, weight, bias, out=out, accumulate=accumulate)


def multiply_gated(x: torch.Tensor, weight: Weight, bias: torch.Tensor | None, out: torch.Tensor) -> torch.Tensor:
    """silu(gate) · up, gate beside up being x Wᵀ + b: [T, K] -> `out` [T, N / 2].

    For a weight whose `gated` is true.
    """
    assert not isinstance(weight, Dense) and weight.gated
    if isinstance(weight, GroupedAffine):
        return grouped_linear(x, weight, bias, out=out)
    return int8_linear(x, weight, bias, out=out)
