"""Sampling in plain torch: the fallback on every device without a kernel, and the oracle of kernel tests.

Shapes: S sampled rows, V vocabulary.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch


def reference_sample(logits: torch.Tensor, controls: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See `ops.sampling.sample`."""
    largest, best = logits.max(dim=-1)
    tokens = best.cpu()
    for row, (temperature, top_k, top_p, min_p, uniform) in enumerate(controls.tolist()):
        if not bool(largest[row].isfinite()):
            tokens[row] = 0
        elif temperature > 0:
            tokens[row] = _sample_row(logits[row].double() / temperature, int(top_k), top_p, min_p, uniform)
    return tokens, largest.cpu()


def reference_mask(logits: torch.Tensor, rows: Sequence[int], masks: Sequence[npt.NDArray[np.int32]]) -> None:
    """See `ops.sampling.mask_logits`."""
    bits = np.unpackbits(np.stack(masks).view(np.uint8), axis=1, bitorder="little")[:, : logits.shape[1]]
    forbidden = torch.from_numpy(bits == 0).to(logits.device)
    selected = torch.tensor(rows, device=logits.device)
    values = logits[selected]
    logits[selected] = values.masked_fill(forbidden & ~values.isnan(), -torch.inf)


def _sample_row(scaled: torch.Tensor, top_k: int, top_p: float, min_p: float, uniform: float) -> int:
    """One row [V] float64 of logits already divided by the temperature."""
    weights = (scaled - scaled.max()).exp()
    if top_k >= len(weights):
        top_k = 0
    if top_k == 0 and top_p >= 1.0 and min_p <= 0.0:
        return _pick(weights, uniform)
    weights, ids = weights.sort(descending=True, stable=True)
    num_kept = top_k or len(weights)
    if top_p < 1.0:
        before = weights.cumsum(dim=-1) - weights
        num_kept = min(num_kept, int((before < top_p * weights[:num_kept].sum()).sum()))
    if min_p > 0.0:
        num_kept = min(num_kept, int((weights >= min_p).sum()))
    return int(ids[_pick(weights[: max(num_kept, 1)], uniform)])


def _pick(weights: torch.Tensor, uniform: float) -> int:
    """Index of the interval of the cumulative weights in which `uniform` of their sum lies."""
    cumulative = weights.cumsum(dim=-1)
    index = int(torch.searchsorted(cumulative, uniform * cumulative[-1], right=True))
    return min(index, int(torch.count_nonzero(cumulative < cumulative[-1])))
