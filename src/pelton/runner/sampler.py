"""How a request's parameters, seed and position choose its token, and what is reported of the choice.

Shapes: S sampled rows, V vocabulary.
"""

import hashlib
from collections.abc import Sequence

import torch

from pelton.types import SamplingParams, TokenLogprobs


def sampling_controls(params: SamplingParams, position: int) -> tuple[float, float, float, float, float]:
    """One row of the controls of `ops.sampling.sample`, for the token of `position` in its sequence.

    The seed, with the position, keys the randomness; None counts as 0.
    """
    if params.greedy:
        return 0.0, 0.0, 1.0, 0.0, 0.0
    uniform = uniform_number(params.seed or 0, position)
    return params.temperature, max(params.top_k, 0), params.top_p, params.min_p, uniform


def uniform_number(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on (seed, position) only: 53 bits of a BLAKE2 hash."""
    digest = hashlib.blake2b(seed.to_bytes(8, "little", signed=True) + position.to_bytes(8, "little"), digest_size=8)
    return (int.from_bytes(digest.digest(), "little") >> 11) / 2.0**53


def token_logprobs(logits: torch.Tensor, token_ids: Sequence[int], counts: Sequence[int]) -> list[TokenLogprobs]:
    """Log-probabilities under the model's own distribution: before penalties, temperature and filters.

    Args:
        logits: [S, V] float32.
        token_ids: the sampled token of each row.
        counts: how many of the most likely tokens each row wants beside it.
    """
    logprobs = logits.log_softmax(dim=-1)
    chosen = logprobs.gather(1, torch.tensor(token_ids, device=logits.device)[:, None])
    ranks = (logprobs > chosen).sum(dim=-1) + 1
    top = logprobs.topk(max(1, *counts), dim=-1)
    return [
        TokenLogprobs(token, logprob, rank, tuple(zip(ids[:count], values[:count], strict=True)))
        for token, logprob, rank, count, ids, values in zip(
            token_ids,
            chosen[:, 0].tolist(),
            ranks.tolist(),
            counts,
            top.indices.tolist(),
            top.values.tolist(),
            strict=True,
        )
    ]
