"""The rotation of csrc/quantized_rows.h in numpy: blocks of 64 inputs, precision as given, order as in the kernels."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 64
NORM = np.float32(0.25)
SIGNS = np.array([-1 if 0x9E3779B97F4A7C15 >> bit & 1 else 1 for bit in range(BLOCK)], np.float32)


def _hadamard(x: NDArray[Any]) -> NDArray[Any]:
    blocks = x.reshape(len(x), -1, 2, 2, 4, 2, 2)
    for axis in (2, 3, 5, 6):
        low, high = np.take(blocks, 0, axis), np.take(blocks, 1, axis)
        blocks = np.stack([low + high, low - high], axis)
    return blocks.reshape(x.shape)


def rotated(x: NDArray[Any]) -> NDArray[Any]:
    """x [N, K] completed with zeros to blocks of 64, rotated and not yet multiplied by NORM: [N, K rounded up]."""
    padded = np.pad(x, ((0, 0), (0, -x.shape[1] % BLOCK)))
    return _hadamard((padded.reshape(len(x), -1, BLOCK) * SIGNS).reshape(padded.shape))


def unrotated(x: NDArray[Any]) -> NDArray[Any]:
    """The inverse of NORM times `rotated` for whole blocks [N, K]."""
    return (_hadamard(x).reshape(len(x), -1, BLOCK) * SIGNS).reshape(x.shape) * NORM
