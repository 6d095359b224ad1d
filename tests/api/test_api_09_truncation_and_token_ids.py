"""Truncate_prompt_tokens from either side, and tokens as ids."""

import pytest

from fakes import Client, FakeEngine

IDS = list(range(60, 80))


@pytest.mark.parametrize(("side", "kept"), [(None, IDS[-5:]), ("left", IDS[-5:]), ("right", IDS[:5])])
def test_api_09_the_prompt_keeps_the_asked_end(side: str | None, kept: list[int]):
    engine = FakeEngine(script=[65])
    body = {"prompt": IDS, "truncate_prompt_tokens": 5, "truncation_side": side, "return_token_ids": True}
    answer = Client.of(engine).post("/v1/completions", body).json()
    assert list(engine.calls[0].prompt_ids) == kept == answer["choices"][0]["prompt_token_ids"]
    assert answer["usage"]["prompt_tokens"] == 5


def test_api_09_output_ids_are_returned():
    engine = FakeEngine(script=[65, 66])
    body = {"prompt": [60], "max_tokens": 2, "return_token_ids": True}
    assert Client.of(engine).post("/v1/completions", body).json()["choices"][0]["token_ids"] == [65, 66]


@pytest.mark.parametrize("stream", [False, True])
def test_api_09_tokens_are_written_as_ids(stream: bool):
    client = Client.of(FakeEngine(script=[65, 66]))
    body = {"prompt": [60], "max_tokens": 2, "logprobs": 2, "return_tokens_as_token_ids": True}
    if stream:
        choices = [event["choices"][0] for event in client.events("/v1/completions", body)]
    else:
        choices = client.post("/v1/completions", body).json()["choices"]
    given = [choice["logprobs"] for choice in choices]
    assert [token for entry in given for token in entry["tokens"]] == ["token_id:65", "token_id:66"]
    assert all(key.startswith("token_id:") for entry in given for top in entry["top_logprobs"] for key in top)
