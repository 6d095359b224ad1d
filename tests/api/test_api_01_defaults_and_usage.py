"""Completions make 16 tokens unless told otherwise, chats what is left; usage and finish_reason are exact."""

import pytest

from fakes import Client, FakeEngine

USER = [{"role": "user", "content": "hi"}]


def test_api_01_completions_default_to_16_tokens():
    answer = Client.of(FakeEngine()).post("/v1/completions", {"prompt": "hello"}).json()
    assert answer["usage"]["completion_tokens"] == 16
    assert answer["choices"][0]["finish_reason"] == "length"


def test_api_01_chats_default_to_the_rest_of_the_context():
    answer = Client.of(FakeEngine()).post("/v1/chat/completions", {"messages": USER}).json()
    assert answer["usage"]["total_tokens"] == 2048
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("length", [1, 7])
def test_api_01_usage_is_exact_and_counts_the_token_that_ends_it(length: int):
    engine = FakeEngine(script=FakeEngine().ids("x") * length)
    answer = Client.of(engine).post("/v1/completions", {"prompt": [65] * 9}).json()
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (9, length + 1, 10 + length)
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_api_01_what_the_server_ends_early_says_abort():
    engine = FakeEngine(aborting=True)
    choice = Client.of(engine).post("/v1/completions", {"prompt": "x"}).json()["choices"][0]
    assert choice["finish_reason"] == "abort"
