"""GGUF tensor data to plain tensors: F32, F16, BF16, Q8_0, Q4_0 and Q4_1.

Block layouts (ggml-common.h), 32 elements each, d and m float16, q the stored integers:
    Q8_0  d, 32 int8                 w = d q
    Q4_0  d, 16 bytes of two nibbles  w = d (q - 8)
    Q4_1  d, m, 16 bytes              w = d q + m
Byte i of a 4-bit block holds element i in its low nibble and element i + 16 in its high one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_BLOCK = 32  # elements
DENSE_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_BLOCK_BYTES = {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20}
FOUR_BIT_TYPES = ("Q4_0", "Q4_1")
SUPPORTED_TYPES = (*DENSE_TYPES, *_BLOCK_BYTES)
# Elements per operation: torch splits operations over threads from 32,768 on, and the barriers of those would stall
# while another process uses a core. Whole tensors can be converted by threads side by side instead.
_STEP = 32768 - 1


@dataclass(frozen=True, slots=True, eq=False)
class GGUFTensor:
    """A tensor of a GGUF file as it is stored: `raw` uint8 [nbytes], ggml's `type`, row-major `shape`."""

    raw: Tensor
    type: str
    shape: tuple[int, ...]

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """[*shape] in `dtype`; raises ValueError as the function below does."""
        return dequantize(self.raw, self.type, self.shape, dtype)

    def check_scales(self) -> None:
        """Raise ValueError if a block's scale or minimum is not finite. Runs on the calling thread alone."""
        if self.type not in _BLOCK_BYTES:
            return
        num_halves = 2 if self.type == "Q4_1" else 1
        halves = self.raw.view(-1, _BLOCK_BYTES[self.type]).view(torch.float16)[:, :num_halves]
        for part in halves.split(_STEP // num_halves):
            _finite(part)


def dequantize(raw: Tensor, type: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Convert the bytes of a GGUF tensor.

    Each element is computed in float32, exactly but for m's addition, and rounded to `dtype` once. Runs on the calling
    thread alone, without the interpreter lock for most of the time.

    Args:
        raw: uint8 [nbytes], the tensor's data as it lies in the file.
        type: ggml's name of the data type, one of SUPPORTED_TYPES.
        shape: row-major shape; its last dimension is a multiple of the block size.
        dtype: float32, bfloat16 or float16.

    Returns:
        A tensor of `shape` and `dtype`. It shares memory with `raw` where it needs no conversion.

    Raises:
        ValueError: the type is not supported, or a block's scale or minimum is not finite.
    """
    if type in DENSE_TYPES:
        return raw.view(DENSE_TYPES[type]).view(*shape).to(dtype)
    if type not in _BLOCK_BYTES:
        raise ValueError(f"type {type} is not supported yet; supported: {', '.join(SUPPORTED_TYPES)}")
    blocks = raw.view(-1, _BLOCK_BYTES[type])
    assert blocks.shape[0] * _BLOCK == math.prod(shape)
    weight = torch.empty(blocks.shape[0], _BLOCK, dtype=dtype)
    step = _STEP // (_BLOCK if type == "Q8_0" else _BLOCK // 2)  # blocks
    for start in range(0, blocks.shape[0], step):
        part = slice(start, start + step)
        if type == "Q8_0":
            _from_q8_0(blocks[part], weight[part])
        else:
            _from_4_bits(blocks[part], weight[part], has_minimum=type == "Q4_1")
    return weight.view(*shape)


def _from_q8_0(blocks: Tensor, weight: Tensor) -> None:
    """blocks uint8 [B, 34] -> weight [B, 32]."""
    scale = _finite(blocks.view(torch.float16)[:, :1])
    weight.copy_(blocks.view(torch.int8)[:, 2:] * scale)


def _from_4_bits(blocks: Tensor, weight: Tensor, *, has_minimum: bool) -> None:
    """blocks uint8 [B, 18 or 20] -> weight [B, 32]."""
    halves = blocks.view(torch.float16)
    scale = _finite(halves[:, :1])
    # d (q - 8) = d q - 8 d: both products are exact in float32, so their difference is rounded as d (q - 8) is.
    minimum = _finite(halves[:, 1:2]) if has_minimum else scale * -8
    nibbles = blocks[:, 4 if has_minimum else 2 :].contiguous()
    weight[:, :16].copy_(((nibbles & 15) * scale).add_(minimum))
    weight[:, 16:].copy_(((nibbles >> 4) * scale).add_(minimum))


def _finite(scales: Tensor) -> Tensor:
    """float16 [B, H] as float32."""
    scales = scales.float()
    if not math.isfinite(scales.sum()):  # finite float16 cannot overflow it
        raise ValueError("a quantization scale is NaN or infinite; the file is damaged")
    return scales
