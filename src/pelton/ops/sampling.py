"""Choosing tokens from logits. A row's token depends on its own logits and controls, on nothing else.

Shapes: S sampled rows, V vocabulary.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from pelton.kernels.cpu import extension
from pelton.ops.reference_sampling import reference_mask, reference_sample

NUM_CONTROLS = 5  # temperature, top_k, top_p, min_p, uniform


def sample(logits: torch.Tensor, controls: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Filter in the order top-k, top-p (of what top-k left), min-p, then inverse transform sampling.

    Args:
        logits: [S, V] float32, -inf where a token is not allowed; rows may be strided.
        controls: [S, 5] float64, contiguous: temperature (0 is greedy), top_k (0 is off), top_p (1 is off), min_p (0 is
            off), and a uniform number in [0, 1), the only randomness.

    Returns:
        tokens [S] int64, and the largest logit of each row [S] float32. Where that is not finite (NaN, or no
        token allowed) there is no token: 0.
    """
    if extension is None or not logits.is_cpu:
        return reference_sample(logits, controls)
    num_rows, vocabulary = logits.shape
    assert logits.dtype is torch.float32 and logits.stride(1) == 1
    assert controls.shape == (num_rows, NUM_CONTROLS) and controls.dtype is torch.float64 and controls.is_contiguous()
    tokens = torch.empty(num_rows, dtype=torch.int64)
    largest = torch.empty(num_rows, dtype=torch.float32)
    extension.sample(
        logits.data_ptr(), logits.stride(0), num_rows, vocabulary, controls.data_ptr(), tokens.data_ptr(),
        largest.data_ptr(),
    )  # fmt: skip
    return tokens, largest


def mask_logits(logits: torch.Tensor, rows: Sequence[int], masks: Sequence[npt.NDArray[np.int32]]) -> None:
    """Rule out, in place, the tokens that the masks of some rows do not allow. NaNs stay.

    Args:
        logits: [S, V] float32; rows may be strided.
        rows: the rows to mask.
        masks: of each of them: [ceil(V / 32)] words, contiguous; token t is bit t % 32 of word t // 32, set if allowed.
    """
    if extension is None or not logits.is_cpu:
        reference_mask(logits, rows, masks)
        return
    vocabulary = logits.shape[1]
    assert logits.dtype is torch.float32 and logits.stride(1) == 1
    start, row_bytes = logits.data_ptr(), logits.stride(0) * logits.element_size()
    for row, mask in zip(rows, masks, strict=True):
        assert mask.size * 32 >= vocabulary and mask.flags.c_contiguous
        extension.mask_logits(start + row * row_bytes, vocabulary, mask.ctypes.data)
