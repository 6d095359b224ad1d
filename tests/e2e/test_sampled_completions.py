"""Sampling over a real server: seeds, beams, bad words and impossible restrictions, with the real model behind."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from canary import Canary

pytestmark = pytest.mark.e2e

PROMPT = "My favourite thing about the sea is"


def choices(canary: Canary, **fields: object) -> list[dict[str, Any]]:
    response = canary.client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 8, **fields})
    assert response.status_code == 200, response.text
    return response.json()["choices"]


def texts(canary: Canary, **fields: object) -> list[str]:
    return [choice["text"] for choice in choices(canary, **fields)]


def test_samples_of_a_seed_differ_and_are_the_same_in_any_company(canary: Canary):
    fields = {"n": 3, "seed": 42, "temperature": 1.0}
    alone = texts(canary, **fields)
    assert len(set(alone)) == 3
    with ThreadPoolExecutor(8) as pool:
        others = [pool.submit(texts, canary, n=2, temperature=1.2, prompt=f"Topic {index}:") for index in range(6)]
        assert texts(canary, **fields) == alone
        assert all(len(other.result()) == 2 for other in others)
    assert texts(canary, **{**fields, "n": 1}) == alone[:1]


def test_beams_are_at_least_as_likely_as_the_greedy_text_and_come_again(canary: Canary):
    fields = {"max_tokens": 6, "logprobs": 0, "ignore_eos": True}

    def likelihood(choice: dict[str, Any]) -> float:
        return sum(choice["logprobs"]["token_logprobs"])

    (greedy,) = choices(canary, temperature=0, **fields)
    beams = choices(canary, use_beam_search=True, n=3, temperature=0, **fields)
    assert [len(beam["logprobs"]["tokens"]) for beam in beams] == [6] * 3
    assert likelihood(beams[0]) >= likelihood(greedy) - 1e-6
    assert [likelihood(beam) for beam in beams] == sorted(map(likelihood, beams), reverse=True)
    assert len({beam["text"] for beam in beams}) == 3
    assert choices(canary, use_beam_search=True, n=3, temperature=0, **fields) == beams
    canary.check()


def test_bad_words_do_not_come(canary: Canary):
    (plain,) = texts(canary, temperature=0, max_tokens=12)
    words = plain.split()
    bad = [words[0], f"{words[1]} {words[2]}"]
    (other,) = texts(canary, temperature=0, max_tokens=12, bad_words=bad)
    assert all(word in plain for word in bad)
    assert words[0] not in other.split()
    assert bad[1] not in other
    assert texts(canary, temperature=0, max_tokens=12, bad_words=["qqqq"]) == [plain]
    canary.check()


@pytest.mark.parametrize(
    "fields",
    [
        {"allowed_token_ids": [100], "logit_bias": {"100": -100}},
        {"logit_bias": {"2": 100}, "min_tokens": 2},
        {"allowed_token_ids": [2], "min_tokens": 1},
    ],
)
def test_restrictions_that_leave_no_token_are_the_client_s_mistake(canary: Canary, fields: dict[str, Any]):
    response = canary.client.post("/v1/completions", json={"prompt": PROMPT, **fields})
    assert response.status_code == 400
    assert "no token is allowed" in response.json()["error"]["message"]
    canary.check()
