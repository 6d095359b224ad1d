"""Sampling against transformers' own processors, against the exact distribution, and against its batch."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from pelton.runner.logits import adjust_logits
from pelton.runner.sampler import NUM_CANDIDATES, sample_token, token_logprobs, uniform_number
from pelton.runner.state import RequestState
from pelton.types import NewRequest, SamplingParams

VOCABULARY = 5000


def random_logits(seed: int, scale: float = 2.0, size: int = VOCABULARY) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * scale


def state_with(prompt: list[int], output: list[int], **params: object) -> RequestState:
    state = RequestState(NewRequest(1, tuple(prompt), SamplingParams(**params)))  # type: ignore[arg-type]
    for offset, token in enumerate(output):
        state.put(len(prompt) + offset, token)
    return state


def expected_support(logits: torch.Tensor, params: SamplingParams) -> set[int]:
    """The tokens that transformers' warpers leave."""
    scores = logits[None] / params.temperature
    ids = torch.zeros((1, 1), dtype=torch.int64)
    if 0 < params.top_k < logits.shape[0]:
        scores = TopKLogitsWarper(params.top_k)(ids, scores)
    if params.top_p < 1.0:
        scores = TopPLogitsWarper(params.top_p)(ids, scores)
    if params.min_p > 0.0:
        scores = MinPLogitsWarper(params.min_p)(ids, scores)
    return set(torch.isfinite(scores[0]).nonzero()[:, 0].tolist())


@pytest.mark.parametrize(
    "settings",
    [
        {"top_k": 7},
        {"top_k": 1500},
        {"top_p": 0.3},
        {"top_p": 0.9},
        {"min_p": 0.2},
        {"top_k": 20, "top_p": 0.5},
        {"top_k": 40, "min_p": 0.3, "temperature": 0.7},
    ],
)
def test_filters_leave_the_tokens_that_transformers_leaves(settings: dict[str, float]) -> None:
    params = SamplingParams(seed=3, **settings)  # type: ignore[arg-type]
    logits = random_logits(1)
    support = expected_support(logits, params)
    drawn = {sample_token(logits, params, position) for position in range(500)}
    assert drawn <= support
    if len(support) < 12:
        assert drawn == support


def test_a_flat_distribution_needs_more_than_the_first_candidates_and_gets_them() -> None:
    logits = random_logits(2, scale=0.01)
    params = SamplingParams(seed=0, top_p=0.95)
    order = logits.argsort(descending=True).tolist()
    ranks = [order.index(sample_token(logits, params, position)) for position in range(200)]
    assert max(ranks) > NUM_CANDIDATES
    assert max(ranks) < math.ceil(0.96 * VOCABULARY)


@pytest.mark.parametrize("settings", [{}, {"top_k": 6}, {"top_p": 0.8}, {"temperature": 0.5}])
def test_frequencies_follow_the_exact_distribution(settings: dict[str, float]) -> None:
    params = SamplingParams(seed=5, **settings)  # type: ignore[arg-type]
    logits = random_logits(4, size=12)
    support = sorted(expected_support(logits, params))
    probabilities = (logits / params.temperature)[support].double().softmax(-1).numpy()
    count = 6_000
    drawn = Counter(sample_token(logits, params, position) for position in range(count))
    observed = np.array([drawn[token] for token in support])
    assert observed.sum() == count
    chi_square = float((((observed - count * probabilities) ** 2) / (count * probabilities)).sum())
    degrees = len(support) - 1
    assert chi_square < degrees + 4 * math.sqrt(2 * degrees) + 6  # about four standard deviations


def test_the_token_depends_on_seed_and_position_only() -> None:
    logits = random_logits(5)
    params = SamplingParams(seed=42)
    first = [sample_token(logits, params, position) for position in range(50)]
    assert first == [sample_token(logits.clone(), params, position) for position in range(50)]
    assert first != [sample_token(logits, params.for_choice(1), position) for position in range(50)]
    assert uniform_number(-(2**63), 0) != uniform_number(2**63 - 1, 0)


def test_penalties_equal_transformers_and_the_openai_formula() -> None:
    logits = random_logits(6)
    prompt, output = [5, 6, 7, 5], [9, 9, 6]
    state = state_with(prompt, output, repetition_penalty=1.3)
    adjusted = adjust_logits(logits[None], [state], [7], [2])
    expected = RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([prompt + output]), logits[None].clone())
    torch.testing.assert_close(adjusted, expected)

    state = state_with(prompt, output, presence_penalty=0.5, frequency_penalty=0.25)
    adjusted = adjust_logits(logits[None], [state], [7], [2])[0]
    expected_row = logits.clone()
    expected_row[9] -= 0.5 + 2 * 0.25
    expected_row[6] -= 0.5 + 0.25
    torch.testing.assert_close(adjusted, expected_row)


def test_a_row_without_adjustments_is_untouched_beside_one_with() -> None:
    logits = torch.stack([random_logits(7), random_logits(8)])
    states = [state_with([1], []), state_with([1], [], logit_bias={3: 5.0})]
    adjusted = adjust_logits(logits, states, [1, 1], [2])
    assert torch.equal(adjusted[0], logits[0])
    assert adjusted[1, 3] == logits[1, 3] + 5.0
    assert adjust_logits(logits, states[:1] * 2, [1, 1], [2]) is logits


def test_a_bias_of_100_forces_and_one_of_minus_100_forbids() -> None:
    logits = random_logits(9)
    forced = adjust_logits(logits[None], [state_with([1], [], logit_bias={17: 1e9})], [1], [2])[0]
    assert forced.argmax() == 17
    assert torch.isinf(forced).sum() == VOCABULARY - 1
    best = int(logits.argmax())
    forbidden = adjust_logits(logits[None], [state_with([1], [], logit_bias={best: -100.0})], [1], [2])[0]
    assert forbidden[best] == -math.inf


def test_allowed_tokens_and_minimum_length() -> None:
    logits = random_logits(10)
    allowed = adjust_logits(logits[None], [state_with([1], [], allowed_token_ids=(4, 8))], [1], [2])[0]
    assert torch.isfinite(allowed).nonzero()[:, 0].tolist() == [4, 8]
    state = state_with([1], [3], min_tokens=2, stop_token_ids=(5,))
    short = adjust_logits(logits[None], [state], [2], [2])[0]
    assert (short[2], short[5]) == (-math.inf, -math.inf)
    assert adjust_logits(logits[None], [state], [3], [2])[0, 2] == logits[2]


def test_logprobs_are_the_models_own_distribution() -> None:
    logits = torch.stack([random_logits(11), random_logits(12)])
    reference = logits.double().log_softmax(-1)
    first, second = token_logprobs(logits, [100, int(logits[1].argmax())], [3, 0])
    assert first.logprob == pytest.approx(float(reference[0, 100]), abs=1e-4)
    assert first.rank == int((reference[0] > reference[0, 100]).sum()) + 1
    assert [token for token, _ in first.top] == reference[0].topk(3).indices.tolist()
    assert [value for _, value in first.top] == pytest.approx(reference[0].topk(3).values.tolist(), abs=1e-4)
    assert (second.rank, second.top) == (1, ())
