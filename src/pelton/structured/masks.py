"""TokenMasks: what the constrained rows of a step may sample, as the engine hands it to the runner."""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Words: TypeAlias = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """Masks by request: W words of 32 tokens each, token t is bit t % 32 of word t // 32, and set if it is allowed.

    `late` are the requests whose masks are not finished: their rows do not sample in this step.
    """

    words: dict[int, Words]
    late: frozenset[int] = frozenset()


def num_words(vocab_size: int) -> int:
    return (vocab_size + 31) // 32
