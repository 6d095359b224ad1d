"""Prompt_logprobs begins with null, is refused in a stream, and writes -inf as -9999."""

import math

import pytest

from pelton.types import TokenLogprobs

from fakes import Client, FakeEngine


class Impossible(FakeEngine):
    """Gives every token no chance at all."""

    def _logprobs(self, ids, params):
        return None if params.logprobs is None else tuple(TokenLogprobs(token, -math.inf, 9, ()) for token in ids)


def test_api_04_the_first_entry_is_null_and_the_others_hold_the_token_itself():
    body = {"prompt": [65, 66, 67], "prompt_logprobs": 2, "max_tokens": 1}
    choice = Client.of(FakeEngine()).post("/v1/completions", body).json()["choices"][0]
    first, *others = choice["prompt_logprobs"]
    assert first is None
    assert [str(token) in entries for token, entries in zip((66, 67), others, strict=True)] == [True, True]
    assert all(2 <= len(entries) <= 3 for entries in others)


@pytest.mark.parametrize("url", ["/v1/completions", "/v1/chat/completions"])
def test_api_04_with_stream_it_is_a_400(url: str):
    body = {"prompt": "x", "messages": [{"role": "user", "content": "x"}], "prompt_logprobs": 1, "stream": True}
    response = Client.of(FakeEngine()).post(url, body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt_logprobs")


def test_api_04_no_chance_at_all_is_minus_9999():
    body = {"prompt": [65, 66], "prompt_logprobs": 0, "logprobs": 0, "max_tokens": 1}
    choice = Client.of(Impossible()).post("/v1/completions", body).json()["choices"][0]
    assert choice["logprobs"]["token_logprobs"] == [-9999.0]
    assert choice["prompt_logprobs"][1]["66"]["logprob"] == -9999.0
