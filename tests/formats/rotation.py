"""The rotation of csrc/quantized_rows.h in numpy: blocks of 64 inputs, in float32 and in the order of the kernels."""

import numpy as np
from numpy.typing import NDArray

BLOCK = 64
NORM = np.float32(0.25)  # of each rotation, so that two of them change nothing


def rotated(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """x [N, K] completed with zeros to blocks of 64 and rotated: [N, K rounded up]."""
    padded = np.pad(x, ((0, 0), (0, -x.shape[1] % BLOCK)))
    blocks = padded.reshape(len(x), -1, 2, 2, 4, 2, 2)
    for axis in (2, 3, 5, 6):
        low, high = np.take(blocks, 0, axis), np.take(blocks, 1, axis)
        blocks = np.stack([low + high, low - high], axis)
    return blocks.reshape(padded.shape)
