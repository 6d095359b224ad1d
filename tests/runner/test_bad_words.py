"""Words that an output must not hold: their last token is ruled out after the others, wherever they stand."""

import math

import numpy as np
import pytest
import torch

from pelton.errors import RequestError
from pelton.runner.bad_words import BadWords
from pelton.runner.logits import adjust_logits
from pelton.runner.state import RequestState
from pelton.types import NewRequest, SamplingParams


def state_after(prompt: list[int], output: list[int], *words: tuple[int, ...]) -> RequestState:
    state = RequestState(NewRequest(1, tuple(prompt), SamplingParams(bad_words_ids=words)))
    for offset, token in enumerate(output):
        state.put(len(prompt) + offset, token)
    return state


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ([], [7]),
        ([1], [7]),
        ([1, 2], [7, 3, 9]),
        ([5, 1, 2], [7, 3, 9]),
        ([2], [7, 9]),
        ([1, 2, 3], [7]),
        ([4, 4], [7, 4]),
        ([4], [7]),
    ],
)
def test_a_token_is_ruled_out_where_it_would_complete_a_word(output: list[int], expected: list[int]) -> None:
    words = BadWords([(7,), (1, 2, 3), (2, 9), (4, 4, 4)])
    assert words.completions(np.array(output, dtype=np.int64)) == expected


def test_the_prompt_does_not_begin_a_word() -> None:
    logits = torch.zeros(1, 10)
    adjusted = adjust_logits(logits, [state_after([1], [], (1, 2))], [1], [])
    assert torch.equal(adjusted, logits)
    adjusted = adjust_logits(logits, [state_after([5], [1], (1, 2))], [2], [])
    assert adjusted[0].tolist() == [0, 0, -math.inf, *[0] * 7]


def test_an_empty_word_is_refused() -> None:
    with pytest.raises(RequestError, match="bad_words"):
        SamplingParams(bad_words_ids=((1,), ()))
