"""A prompt means the same as text, as ids, alone and in a list; choices come prompt by prompt.

Reported: a second BOS before prompts of ids, answers in another order than the prompts, max_tokens and usage of the
first prompt only (vllm#39556, vllm#7632).
"""

from typing import Any

import pytest

from live import complete

from canary import Canary

pytestmark = pytest.mark.e2e

URL = "/v1/completions"
TEXTS = [
    "The sea is",
    "Two and two make",
    "def add(a, b):\n    return",
    "Once upon a time, in a land far away, there was a",
]


@pytest.fixture(scope="module")
def ids(canary: Canary) -> list[list[int]]:
    return [canary.client.post("/tokenize", json={"prompt": text}).json()["tokens"] for text in TEXTS]


@pytest.fixture(scope="module")
def alone(canary: Canary) -> list[dict[str, Any]]:
    return [complete(canary, prompt=text, temperature=0, max_tokens=8) for text in TEXTS]


def test_lim_05_ids_give_what_their_text_gives(canary: Canary, ids: list[list[int]], alone: list[dict[str, Any]]):
    assert len({len(tokens) for tokens in ids}) > 2, "the prompts were to have different lengths"
    for tokens, expected in zip(ids, alone, strict=True):
        answer = complete(canary, prompt=tokens, temperature=0, max_tokens=8, return_token_ids=True)
        assert answer["choices"][0]["prompt_token_ids"] == tokens
        assert answer["choices"][0]["text"] == expected["choices"][0]["text"]
        assert answer["usage"]["prompt_tokens"] == expected["usage"]["prompt_tokens"] == len(tokens)


@pytest.mark.parametrize("kind", ["texts", "ids"])
def test_lim_05_a_batch_gives_each_prompt_its_own_answer(
    canary: Canary, ids: list[list[int]], alone: list[dict[str, Any]], kind: str
):
    answer = complete(canary, prompt=TEXTS if kind == "texts" else ids, temperature=0, max_tokens=8)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert [choice["text"] for choice in answer["choices"]] == [one["choices"][0]["text"] for one in alone]
    for field in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert answer["usage"][field] == sum(one["usage"][field] for one in alone)


def test_lim_05_with_n_the_index_is_prompt_times_n_plus_sample(canary: Canary, ids: list[list[int]]):
    fields = {"n": 2, "temperature": 0.9, "seed": 11, "max_tokens": 6}
    answer = complete(canary, prompt=ids, **fields)
    assert [choice["index"] for choice in answer["choices"]] == list(range(8))
    expected = [choice["text"] for text in TEXTS for choice in complete(canary, prompt=text, **fields)["choices"]]
    assert [choice["text"] for choice in answer["choices"]] == expected
    assert answer["usage"]["prompt_tokens"] == sum(map(len, ids))
