"""Ids out of vocabulary are named with its size, values clamp at 100, and 100 forces the token."""

import pytest

from live import complete

from canary import Canary
from fakes import Client, FakeEngine

SIZE = FakeEngine().tokenizer.vocab_size


def test_api_21_ids_out_of_vocabulary_are_named_with_its_size():
    body = {"prompt": "x", "logit_bias": {"5": 1, str(SIZE): 1, "-5": 1}}
    response = Client.of(FakeEngine()).post("/v1/completions", body)
    message = response.json()["error"]["message"]
    assert response.status_code == 400
    assert message.count(str(SIZE)) == 2 and "-5" in message


def test_api_21_values_clamp_at_100():
    engine = FakeEngine(script=[65])
    Client.of(engine).post("/v1/completions", {"prompt": "x", "logit_bias": {"5": 1e9, "6": -1e9, "7": 3}})
    assert engine.calls[0].params.logit_bias == {5: 100.0, 6: -100.0, 7: 3.0}


@pytest.mark.e2e
def test_api_21_100_forces_the_token(canary: Canary):
    answer = complete(canary, prompt="Hello", max_tokens=5, logit_bias={"1000": 100}, return_token_ids=True)
    assert answer["choices"][0]["token_ids"] == [1000] * 5
    canary.check()
