"""Logprobs null, 0, 5 and above the limit, streamed or not."""

import pytest

from fakes import Client, FakeEngine

BODY = {"prompt": "x", "max_tokens": 4}


@pytest.mark.parametrize(("logprobs", "fewest", "most"), [(0, 1, 1), (5, 5, 6), (20, 20, 21)])
def test_api_03_entries_at_each_position(logprobs: int, fewest: int, most: int):
    answer = Client.of(FakeEngine()).post("/v1/completions", {**BODY, "logprobs": logprobs}).json()
    given = answer["choices"][0]["logprobs"]
    assert len(given["tokens"]) == len(given["token_logprobs"]) == len(given["text_offset"]) == 4
    assert all(fewest <= len(entries) <= most for entries in given["top_logprobs"])


def test_api_03_null_is_null():
    choice = Client.of(FakeEngine()).post("/v1/completions", {**BODY, "logprobs": None}).json()["choices"][0]
    assert choice["logprobs"] is None


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("logprobs", [21, -1, 10**6])
def test_api_03_out_of_range_is_a_400(logprobs: int, stream: bool):
    response = Client.of(FakeEngine()).post("/v1/completions", {**BODY, "logprobs": logprobs, "stream": stream})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "logprobs")
