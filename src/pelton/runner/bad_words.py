"""BadWords: sequences of tokens that an output must not hold."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt


class BadWords:
    """Says which tokens would complete a word. The cost of a token depends on the words that the output is within.

    Args:
        words: token ids of each, at least one.
    """

    def __init__(self, words: Iterable[Sequence[int]]) -> None:
        self._single: list[int] = []
        self._by_end: dict[int, list[tuple[tuple[int, ...], int]]] = {}  # by the last token before the completing one
        for word in words:
            *start, last = word
            if start:
                self._by_end.setdefault(start[-1], []).append((tuple(start), last))
            else:
                self._single.append(last)

    def completions(self, output: npt.NDArray[np.int64]) -> list[int]:
        """The tokens that must not come next after the output so far."""
        if not len(output):
            return self._single
        begun = self._by_end.get(int(output[-1]), ())
        ends = [last for start, last in begun if tuple(output[-len(start) :].tolist()) == start]
        return [*self._single, *ends]
