"""What changes logits before sampling: penalties, biases, allowed tokens, bad words, minimum length.

Shapes: S sampled rows, V vocabulary.
"""

from collections.abc import Collection, Sequence

import numpy as np
import torch

from pelton.runner.state import RequestState

# Beyond these a penalty decides alone, and quotients would leave float32.
_LEAST_PENALTY, _MOST_PENALTY = 1e-30, 1e30


def adjust_logits(
    logits: torch.Tensor, states: Sequence[RequestState], positions: Sequence[int], eos_token_ids: Collection[int]
) -> torch.Tensor:
    """Apply every row's own adjustments; rows without any are untouched.

    Args:
        logits: [S, V] float32. Not modified.
        states: of each row.
        positions: of the token that each row is about to sample.

    Returns:
        [S, V] float32, the same tensor when no row needs anything.
    """
    needy = [row for row, state in enumerate(states) if needs_adjustment(state, positions[row])]
    if not needy:
        return logits
    adjusted = logits.clone()
    for row in needy:
        _adjust_row(adjusted[row], states[row], positions[row], eos_token_ids)
    return adjusted


def needs_adjustment(state: RequestState, position: int) -> bool:
    params = state.params
    return bool(
        state.restrictions is not None
        or params.repetition_penalty != 1.0
        or params.presence_penalty
        or params.frequency_penalty
        or position - state.num_prompt < params.min_tokens
    )


def _adjust_row(logits: torch.Tensor, state: RequestState, position: int, eos_token_ids: Collection[int]) -> None:
    """In place on one row [V]. Penalties come first, so that a bias of 100 forces a token whatever they are."""
    params = state.params
    _penalize(logits, state, position)
    if state.restrictions is not None:
        state.restrictions.apply(logits, state.output(position))
    if position - state.num_prompt < params.min_tokens:
        may_end = not params.ignore_eos or params.grammar is not None  # a grammar's end is the output's
        ends = [*params.stop_token_ids, *(eos_token_ids if may_end else ())]
        logits[torch.tensor(ends, dtype=torch.int64, device=logits.device)] = -torch.inf


def _penalize(logits: torch.Tensor, state: RequestState, position: int) -> None:
    """Repetition penalty over prompt and output (CTRL, arXiv 1909.05858); presence and frequency over the output."""
    params = state.params
    if params.repetition_penalty != 1.0:
        seen = torch.from_numpy(np.unique(state.span(0, position))).to(logits.device)
        values = logits[seen]
        penalty = min(max(params.repetition_penalty, _LEAST_PENALTY), _MOST_PENALTY)
        logits[seen] = torch.where(values > 0, values / penalty, values * penalty)
    if params.presence_penalty or params.frequency_penalty:
        tokens, counts = np.unique(state.output(position), return_counts=True)
        amounts = params.presence_penalty + params.frequency_penalty * torch.from_numpy(counts)
        logits[torch.from_numpy(tokens).to(logits.device)] -= amounts.to(logits)
