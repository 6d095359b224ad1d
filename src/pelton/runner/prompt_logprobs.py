"""Log-probabilities of prompt tokens, for the requests that ask for them.

Shapes: T tokens of the step, V vocabulary.
"""

from collections.abc import Callable

import torch

from pelton.layers.scratch import Scratch
from pelton.runner.sampler import token_logprobs
from pelton.runner.state import RequestState
from pelton.types import Row, TokenLogprobs

_CHUNK = 64  # positions whose logits exist at a time: 12 MiB where the vocabulary has 49,152 tokens


def has_unscored(state: RequestState) -> bool:
    """Whether a request still waits for log-probabilities of its prompt."""
    return state.params.prompt_logprobs is not None and state.num_scored < state.num_prompt - 1


def score_prompt(
    row: Row,
    first: int,
    state: RequestState,
    logits: Callable[[torch.Tensor], torch.Tensor],
    scratch: Scratch,
) -> tuple[TokenLogprobs, ...]:
    """Of the prompt tokens that a row's positions predict, without those of an earlier step.

    Args:
        row: computed by this step.
        first: where the row begins in the step [T].
        logits: of some tokens of the step, given by index: [S] int64 -> [S, V] float32 in `scratch`.
    """
    count = state.params.prompt_logprobs or 0
    start = max(row.start, state.num_scored)
    stop = min(row.start + row.num_tokens, state.num_prompt - 1)
    entries: list[TokenLogprobs] = []
    for begin in range(start, stop, _CHUNK):
        end = min(begin + _CHUNK, stop)
        mark = scratch.mark()
        offset = first - row.start
        chunk = logits(torch.arange(begin + offset, end + offset, device=scratch.block.device))
        entries += token_logprobs(chunk, state.span(begin + 1, end + 1).tolist(), [count] * (end - begin))
        scratch.release(mark)
    state.num_scored = max(state.num_scored, stop)
    return tuple(entries)
