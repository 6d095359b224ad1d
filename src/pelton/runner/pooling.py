"""One vector for a prompt, from the hidden states of its tokens.

Shapes: T tokens of the step, S tokens of a row, D hidden size.
"""

from collections.abc import Callable

import numpy as np
import torch

from pelton.layers.scratch import Scratch
from pelton.types import Pooling, Row

_CHUNK = 64  # positions whose hidden states exist at a time


class HiddenStates:
    """What is kept of a prompt's hidden states while its chunks are computed.

    The mean adds them up in float64, one position after the other: the chunks leave no trace in it. Its request must
    compute every position, so none may come from the prefix cache.
    """

    def __init__(self, pooling: Pooling, num_prompt: int) -> None:
        self._pooling = pooling
        self._num_prompt = num_prompt
        self._total = np.zeros(1)
        self._num_added = 0
        self.is_complete = False

    def add(
        self, row: Row, first: int, hidden: Callable[[torch.Tensor], torch.Tensor], scratch: Scratch
    ) -> bytes | None:
        """Read what a step computed.

        Args:
            row: of this request, in the order of its positions; a preempted request begins again at 0.
            first: where the row begins in the step [T].
            hidden: states of some tokens of the step, given by index: [S] int64 -> [S, D] in `scratch`.

        Returns:
            The vector of length 1, float32 [D], with the last position; None before, and where it is not finite.
        """
        end = row.start + row.num_tokens
        self.is_complete = end == self._num_prompt
        if self._pooling == "mean":
            self._add_up(row, first, hidden, scratch)
        elif self.is_complete:
            self._total = _states(first + row.num_tokens - 1, 1, hidden, scratch)[0]
        return _unit_vector(self._total) if self.is_complete else None

    def _add_up(self, row: Row, first: int, hidden: Callable[[torch.Tensor], torch.Tensor], scratch: Scratch) -> None:
        if row.start == 0:
            self._total, self._num_added = np.zeros(1), 0
        assert row.start == self._num_added, "a position is missing from the mean"
        for start in range(0, row.num_tokens, _CHUNK):
            for state in _states(first + start, min(_CHUNK, row.num_tokens - start), hidden, scratch):
                self._total = self._total + state
        self._num_added += row.num_tokens


def _states(first: int, count: int, hidden: Callable[[torch.Tensor], torch.Tensor], scratch: Scratch) -> np.ndarray:
    """[S, D] float64 of `count` tokens of the step."""
    mark = scratch.mark()
    states = hidden(torch.arange(first, first + count, device=scratch.block.device)).double().cpu().numpy()
    scratch.release(mark)
    return states


def _unit_vector(total: np.ndarray) -> bytes | None:
    length = float(np.linalg.norm(total))
    if not np.isfinite(length) or length == 0.0:
        return None
    return (total / length).astype(np.float32).tobytes()
