"""From logits to tokens. A row's token depends on its own logits, parameters, seed and position, on nothing else.

Shapes: S sampled rows, V vocabulary, C candidates.
"""

import hashlib
from collections.abc import Sequence

import torch

from pelton.types import SamplingParams, TokenLogprobs

# Top-k, top-p and min-p look at this many of the most likely tokens first; a row that needs more is sorted whole.
NUM_CANDIDATES = 1024


def sample_token(logits: torch.Tensor, params: SamplingParams, position: int) -> int:
    """The token of one row whose parameters are not greedy.

    Args:
        logits: [V] float32, after penalties and masks; -inf where a token is not allowed.
        params: temperature and filters; `seed` None counts as 0.
        position: of the token to be sampled, in its sequence; with the seed it keys the randomness.
    """
    uniform = uniform_number(params.seed or 0, position)
    return _sample_row(logits / params.temperature, params, uniform)


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


def _sample_row(scaled: torch.Tensor, params: SamplingParams, uniform: float) -> int:
    """Inverse transform sampling over one row [V] of logits already divided by the temperature."""
    vocabulary = scaled.shape[0]
    has_top_k = 0 < params.top_k < vocabulary
    if not has_top_k and params.top_p >= 1.0 and params.min_p <= 0.0:
        return _pick(scaled.double().softmax(dim=-1), uniform)
    log_total = scaled.double().logsumexp(dim=-1)
    for num_candidates in (params.top_k if has_top_k else min(NUM_CANDIDATES, vocabulary), vocabulary):
        values, ids = scaled.topk(num_candidates)
        probabilities = (values.double() - log_total).exp()
        num_kept = _num_kept(probabilities, params, renormalize=has_top_k)
        if has_top_k or num_kept < num_candidates:
            break
    return int(ids[_pick(probabilities[:num_kept], uniform)])


def _num_kept(probabilities: torch.Tensor, params: SamplingParams, *, renormalize: bool) -> int:
    """How many of the candidates [C], most likely first, survive top-p and min-p; at least 1.

    Top-p is a share of the whole distribution, or of the candidates' own with `renormalize` (after top-k).
    """
    num_kept = len(probabilities)
    if params.top_p < 1.0:
        total = probabilities.sum() if renormalize else 1.0
        before = probabilities.cumsum(dim=-1) - probabilities
        num_kept = int((before < params.top_p * total).sum())
    if params.min_p > 0.0:
        num_kept = min(num_kept, int((probabilities >= params.min_p * probabilities[0]).sum()))
    return max(num_kept, 1)


def _pick(probabilities: torch.Tensor, uniform: float) -> int:
    """Index of the interval of the cumulative distribution in which `uniform` of its total lies."""
    cumulative = probabilities.cumsum(dim=-1)
    index = int(torch.searchsorted(cumulative, uniform * cumulative[-1], right=True))
    return min(index, int(torch.count_nonzero(cumulative < cumulative[-1])))
