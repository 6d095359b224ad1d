"""What is done to logits before a token is chosen, and what is reported of the choice."""

import math

import pytest
import torch
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from pelton.runner.logits import adjust_logits
from pelton.runner.sampler import sampling_controls, token_logprobs, uniform_number
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


def test_controls_carry_the_parameters_and_a_number_keyed_by_seed_and_position() -> None:
    params = SamplingParams(temperature=0.7, top_k=-1, top_p=0.9, min_p=0.1, seed=42)
    assert sampling_controls(params, 5)[:4] == (0.7, 0, 0.9, 0.1)
    numbers = [sampling_controls(params, position)[4] for position in range(50)]
    assert numbers == [sampling_controls(params, position)[4] for position in range(50)]
    assert len({*numbers, *(sampling_controls(params.for_choice(1), position)[4] for position in range(50))}) == 100
    assert all(0.0 <= number < 1.0 for number in numbers)
    assert uniform_number(-(2**63), 0) != uniform_number(2**63 - 1, 0)


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"temperature": 1e-6}, {"top_k": 1}])
def test_what_cannot_change_the_choice_is_greedy(settings: dict[str, float]) -> None:
    assert sampling_controls(SamplingParams(seed=1, **settings), 3) == (0.0, 0.0, 1.0, 0.0, 0.0)  # type: ignore[arg-type]


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


@pytest.mark.parametrize("penalty", [1e-320, 1e-40, 1e38, 1e308])
def test_penalties_of_any_size_leave_numbers(penalty: float) -> None:
    logits = random_logits(13)
    logits[5] = 0.0
    best = int(logits.argmax())
    adjusted = adjust_logits(logits[None], [state_with([5, best], [], repetition_penalty=penalty)], [2], [])[0]
    assert torch.isfinite(adjusted).all()
    assert int(adjusted.argmax()) == best if penalty < 1 else adjusted[best] == pytest.approx(0.0)


def test_thousands_of_biases_are_added_at_once() -> None:
    logits = random_logits(14)
    biases = {token: (-100.0 if token % 2 else 0.5) for token in range(VOCABULARY)}
    adjusted = adjust_logits(logits[None], [state_with([1], [], logit_bias=biases)], [1], [])[0]
    assert torch.equal(adjusted[::2], logits[::2] + 0.5)
    assert torch.isinf(adjusted[1::2]).all()


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
