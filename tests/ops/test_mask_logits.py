"""Token masks on logits: the bits of the rows named, and nothing else."""

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch

from pelton.ops.reference_sampling import reference_mask
from pelton.ops.sampling import mask_logits


def random_mask(seed: int, vocabulary: int, density: float) -> tuple[npt.NDArray[np.int32], torch.Tensor]:
    """A mask, and which tokens it allows."""
    allowed = np.random.default_rng(seed).random(-(-vocabulary // 32) * 32) < density
    return np.packbits(allowed, bitorder="little").view(np.int32), torch.from_numpy(allowed[:vocabulary])


def check(mask: object, vocabulary: int, density: float) -> None:
    logits = torch.randn(4, vocabulary + 5, generator=torch.Generator().manual_seed(1))[:, :vocabulary]
    logits[3, 7] = math.nan
    original = logits.clone()
    (first, first_allowed), (second, second_allowed) = (random_mask(seed, vocabulary, density) for seed in (1, 2))
    mask(logits, [1, 3], [first, second])  # type: ignore[operator]
    assert torch.equal(logits[[0, 2]], original[[0, 2]])
    assert torch.equal(logits[1], original[1].where(first_allowed, torch.tensor(-torch.inf)))
    expected = original[3].where(second_allowed, torch.tensor(-torch.inf))
    expected[7] = math.nan
    assert torch.equal(logits[3].nan_to_num(nan=5.0), expected.nan_to_num(nan=5.0))


@pytest.mark.parametrize("vocabulary", [9, 32, 1000, 49152, 49153])
@pytest.mark.parametrize("density", [0.0, 0.001, 0.5, 0.999, 1.0])
def test_rows_lose_what_their_masks_do_not_allow(vocabulary: int, density: float, instruction_set: str) -> None:
    check(mask_logits, vocabulary, density)


@pytest.mark.parametrize("density", [0.0, 0.5, 1.0])
def test_so_they_do_on_other_devices(density: float) -> None:
    check(reference_mask, 1000, density)
