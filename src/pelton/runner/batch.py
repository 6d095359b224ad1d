"""From a Plan to the tensors of a Batch, in memory that stays in place from step to step.

Shapes: T tokens of the step, R rows, S sampled rows, P pages of the longest row.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from pelton.layers.context import Batch
from pelton.runner.state import RequestState
from pelton.types import Plan, Row


class BatchBuilder:
    """Packs the rows of a plan, in plan order and without padding.

    A batch is valid until the next one is built. On a CPU its tensors begin at the same addresses as those of every
    other batch with the same `memory`.
    """

    def __init__(self, page_size: int, device: torch.device) -> None:
        self._page_size = page_size
        self._device = device
        self.memory = _BatchMemory(num_tokens=512, num_rows=64, num_pages=64)

    def build(self, plan: Plan, states: Mapping[int, RequestState]) -> Batch:
        rows = plan.rows
        num_tokens = plan.num_tokens
        longest = max(len(row.pages) for row in rows)
        if not self.memory.holds(num_tokens, len(rows), longest):
            self.memory = self.memory.enlarged(num_tokens, len(rows), longest)
        memory = self.memory
        memory.write_pages(rows)
        if num_tokens == len(rows):
            num_sampled = _fill_single_tokens(memory, rows, states, self._page_size)
        else:
            num_sampled = _fill(memory, rows, num_tokens, states, self._page_size)
        return self._batch(num_tokens, len(rows), longest, num_sampled)

    def _batch(self, num_tokens: int, num_rows: int, num_pages: int, num_sampled: int) -> Batch:
        tensors = self.memory.tensors
        return Batch(
            token_ids=self._moved(tensors["token_ids"][:num_tokens]),
            positions=self._moved(tensors["positions"][:num_tokens]),
            slots=self._moved(tensors["slots"][:num_tokens]),
            row_starts=self._moved(tensors["row_starts"][: num_rows + 1]),
            context_lens=self._moved(tensors["context_lens"][:num_rows]),
            page_table=self._moved(tensors["page_table"][:num_rows, :num_pages]),
            sample_indices=self._moved(tensors["sample_indices"][:num_sampled]),
        )

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if self._device.type == "cpu" else tensor.to(self._device, non_blocking=True)


class _BatchMemory:
    """The arrays of the largest batch so far, and the same memory as tensors."""

    def __init__(self, *, num_tokens: int, num_rows: int, num_pages: int) -> None:
        self.token_ids = np.zeros(num_tokens, dtype=np.int64)
        self.positions = np.zeros(num_tokens, dtype=np.int64)
        self.slots = np.zeros(num_tokens, dtype=np.int64)
        self.row_starts = np.zeros(num_rows + 1, dtype=np.int32)
        self.context_lens = np.zeros(num_rows, dtype=np.int32)
        self.page_table = np.zeros((num_rows, num_pages), dtype=np.int32)
        self.sample_indices = np.zeros(num_rows, dtype=np.int64)
        self.tensors = {
            name: torch.from_numpy(array) for name, array in vars(self).items() if isinstance(array, np.ndarray)
        }
        self._written: list[Sequence[int]] = [()] * num_rows

    def holds(self, num_tokens: int, num_rows: int, num_pages: int) -> bool:
        rows, pages = self.page_table.shape
        return num_tokens <= len(self.token_ids) and num_rows <= rows and num_pages <= pages

    def enlarged(self, num_tokens: int, num_rows: int, num_pages: int) -> "_BatchMemory":
        """New memory, at least twice as large in what did not suffice."""
        rows, pages = self.page_table.shape
        return _BatchMemory(
            num_tokens=_grown(len(self.token_ids), num_tokens),
            num_rows=_grown(rows, num_rows),
            num_pages=_grown(pages, num_pages),
        )

    def write_pages(self, rows: Sequence[Row]) -> None:
        """Entries past a row's own pages are left as they are and never read."""
        for index, row in enumerate(rows):
            if self._written[index] is not row.pages:
                self.page_table[index, : len(row.pages)] = row.pages
                self._written[index] = row.pages


def _grown(size: int, needed: int) -> int:
    return size if needed <= size else max(2 * size, needed)


def _fill_single_tokens(
    memory: _BatchMemory, rows: Sequence[Row], states: Mapping[int, RequestState], page_size: int
) -> int:
    """Rows of one token each, a decode step as a rule. Returns the number of sampled rows."""
    num_rows = len(rows)
    starts = _int_array([row.start for row in rows])
    memory.token_ids[:num_rows] = [states[row.request_id].token(row.start) for row in rows]
    memory.positions[:num_rows] = starts
    pages = memory.page_table[np.arange(num_rows), starts // page_size]
    memory.slots[:num_rows] = pages.astype(np.int64) * page_size + starts % page_size
    memory.row_starts[: num_rows + 1] = np.arange(num_rows + 1)
    memory.context_lens[:num_rows] = starts + 1
    sampled = [index for index, row in enumerate(rows) if row.sample]
    memory.sample_indices[: len(sampled)] = sampled
    return len(sampled)


def _fill(
    memory: _BatchMemory, rows: Sequence[Row], num_tokens: int, states: Mapping[int, RequestState], page_size: int
) -> int:
    """Rows of any length. Returns the number of sampled rows."""
    num_rows = len(rows)
    counts = _int_array([row.num_tokens for row in rows])
    starts = _int_array([row.start for row in rows])
    row_starts = memory.row_starts[: num_rows + 1]
    row_starts[0] = 0
    np.cumsum(counts, out=row_starts[1:])
    spans = [states[row.request_id].span(row.start, row.start + row.num_tokens) for row in rows]
    np.concatenate(spans, out=memory.token_ids[:num_tokens])
    row_of_token = np.repeat(np.arange(num_rows), counts)
    positions = memory.positions[:num_tokens]
    positions[:] = np.arange(num_tokens) - row_starts[row_of_token] + starts[row_of_token]
    pages = memory.page_table[row_of_token, positions // page_size]
    memory.slots[:num_tokens] = pages.astype(np.int64) * page_size + positions % page_size
    memory.context_lens[:num_rows] = starts + counts
    sampled = np.fromiter((row.sample for row in rows), dtype=bool, count=num_rows)
    num_sampled = int(sampled.sum())
    memory.sample_indices[:num_sampled] = row_starts[1:][sampled] - 1
    return num_sampled


def _int_array(values: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)
