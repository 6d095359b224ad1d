"""From a Plan to the tensors of a Batch."""

from collections.abc import Mapping

import numpy as np
import torch

from pelton.layers.context import Batch
from pelton.runner.state import RequestState
from pelton.types import Plan


def build_batch(plan: Plan, states: Mapping[int, RequestState], page_size: int, device: torch.device) -> Batch:
    """Pack the rows of a plan, in plan order and without padding. Shapes are those of `Batch`."""
    rows = plan.rows
    counts = np.fromiter((row.num_tokens for row in rows), dtype=np.int32, count=len(rows))
    starts = np.fromiter((row.start for row in rows), dtype=np.int32, count=len(rows))
    row_starts = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum(counts, out=row_starts[1:])
    token_ids = np.concatenate([states[row.request_id].span(row.start, row.start + row.num_tokens) for row in rows])

    row_of_token = np.repeat(np.arange(len(rows)), counts)
    offsets = np.arange(row_starts[-1], dtype=np.int64) - row_starts[row_of_token]
    positions = starts[row_of_token].astype(np.int64) + offsets
    page_table = _page_table(plan)
    pages = page_table[row_of_token, positions // page_size].astype(np.int64)
    slots = pages * page_size + positions % page_size
    sampled = np.fromiter((row.sample for row in rows), dtype=bool, count=len(rows))
    return Batch(
        token_ids=_to(token_ids, device),
        positions=_to(positions, device),
        slots=_to(slots, device),
        row_starts=_to(row_starts, device),
        context_lens=_to(starts + counts, device),
        page_table=_to(page_table, device),
        sample_indices=_to(row_starts[1:][sampled].astype(np.int64) - 1, device),
    )


def _page_table(plan: Plan) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    """[R, P] page ids; a row's entries past its own pages are 0 and never read."""
    longest = max(len(row.pages) for row in plan.rows)
    table = np.zeros((len(plan.rows), longest), dtype=np.int32)
    for index, row in enumerate(plan.rows):
        table[index, : len(row.pages)] = row.pages
    return table


def _to(array: np.ndarray, device: torch.device) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.to(device, non_blocking=True)
