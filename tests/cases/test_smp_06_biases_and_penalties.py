"""Biases and penalties change the request that asks for them and no other, and bad ones are refused by name.

Reported: a crash of the engine on a bias for a token out of vocabulary or on a penalty with an empty output, and
penalties that leak into a neighbour of the batch (vllm#16529, vllm#6866, sglang#7670, CVE-2026-105922,
CVE-2026-44223).
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from canary import Canary

pytestmark = pytest.mark.e2e

REPEATED = "the sea the sea the sea the sea"
NEIGHBOUR = "The lighthouse stood at the end of a long"


def post(canary: Canary, body: dict[str, Any]) -> httpx.Response:
    return canary.client.post("/v1/completions", json={"temperature": 0, "max_tokens": 8, **body})


def text(canary: Canary, body: dict[str, Any]) -> str:
    response = post(canary, body)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["text"]


def assert_refused(canary: Canary, body: bytes, param: str, word: str) -> None:
    headers = {"Content-Type": "application/json"}
    response = canary.client.post("/v1/completions", content=body, headers=headers)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert word in response.json()["error"]["message"]
    canary.check()


def test_smp_06_a_bias_of_100_forces_its_token_and_more_is_no_more(canary: Canary):
    token = canary.client.post("/tokenize", json={"prompt": " sea"}).json()["tokens"]
    assert len(token) == 1
    for bias in (100, 1e9):
        assert text(canary, {"prompt": "Paris is", "logit_bias": {str(token[0]): bias}}) == " sea" * 8
    canary.check()


@pytest.mark.parametrize(
    ("biases", "word"),
    [
        (b'{"49152": 1}', "49152 is out of vocabulary; the vocabulary size is 49152"),
        (b'{"5": 1, "1000000": 1}', "1000000"),
        (b'{"-5": 1}', "-5"),
        (b'{"abc": 1}', "'abc'"),
        (b'{"7": NaN}', "logit_bias.7"),
        (b'{"7": -Infinity}', "logit_bias.7"),
    ],
)
def test_smp_06_a_bad_bias_is_refused_by_its_key(canary: Canary, biases: bytes, word: str):
    assert_refused(canary, b'{"prompt": "hi", "logit_bias": ' + biases + b"}", "logit_bias", word)


@pytest.mark.parametrize(
    ("field", "value"),
    [("presence_penalty", 2.1), ("frequency_penalty", -2.1), ("repetition_penalty", 0), ("repetition_penalty", -1)],
)
def test_smp_06_a_penalty_out_of_range_is_refused_by_name(canary: Canary, field: str, value: float):
    assert_refused(canary, f'{{"prompt": "hi", "{field}": {value}}}'.encode(), field, field)


def test_smp_06_penalties_leave_the_neighbours_alone(canary: Canary):
    penalties: list[dict[str, Any]] = [
        {"presence_penalty": 2},
        {"presence_penalty": -2},
        {"frequency_penalty": 2},
        {"frequency_penalty": -2},
        {"repetition_penalty": 0.5},
        {"repetition_penalty": 1.3},
        {"repetition_penalty": 1e-300},
        {"repetition_penalty": 1e300},
        {"logit_bias": {str(token): -100 for token in range(2000)}},
    ]
    plain = text(canary, {"prompt": REPEATED})
    alone = text(canary, {"prompt": NEIGHBOUR, "max_tokens": 24})
    with ThreadPoolExecutor(len(penalties) + 1) as pool:
        neighbour = pool.submit(text, canary, {"prompt": NEIGHBOUR, "max_tokens": 24})
        changed = list(pool.map(lambda penalty: text(canary, {"prompt": REPEATED, **penalty}), penalties))
        assert neighbour.result() == alone
    assert changed[5] != plain  # it matters
    assert changed == [text(canary, {"prompt": REPEATED, **penalty}) for penalty in penalties]
    canary.check()
