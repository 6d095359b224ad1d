"""Token masks on logits: the bits of the rows named, and nothing else."""

import math

import numpy as np
import pytest
import torch

from pelton.runner.logits import mask_logits
from pelton.structured.masks import Words, num_words

VOCABULARY = 1000  # no multiple of 32


def random_words(seed: int, density: float) -> tuple[Words, torch.Tensor]:
    """A mask, and which tokens it allows."""
    allowed = np.random.default_rng(seed).random(32 * num_words(VOCABULARY)) < density
    return np.packbits(allowed, bitorder="little").view(np.int32), torch.from_numpy(allowed[:VOCABULARY])


class _OnDevice(torch.Tensor):
    """Takes the way of a tensor that is not in the processor's memory."""

    is_cpu = False  # type: ignore[assignment]


@pytest.mark.parametrize("on_cpu", [True, False])
@pytest.mark.parametrize("density", [0.0, 0.001, 0.5, 1.0])
def test_rows_lose_what_their_masks_do_not_allow(density: float, on_cpu: bool) -> None:
    logits = torch.randn(4, VOCABULARY, generator=torch.Generator().manual_seed(1))
    logits[3, 7] = math.nan
    original = logits.clone()
    (first, first_allowed), (second, second_allowed) = random_words(1, density), random_words(2, density)
    mask_logits(logits if on_cpu else logits.as_subclass(_OnDevice), [1, 3], [first, second])
    assert torch.equal(logits[[0, 2]], original[[0, 2]])
    assert torch.equal(logits[1], original[1].where(first_allowed, torch.tensor(-torch.inf)))
    others = torch.arange(VOCABULARY) != 7
    expected = original[3].where(second_allowed, torch.tensor(-torch.inf))
    assert torch.equal(logits[3][others], expected[others])
