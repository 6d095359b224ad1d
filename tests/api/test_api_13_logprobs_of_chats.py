"""Top_logprobs 0 gives empty lists, 5 exactly 5, and without logprobs a 400."""

import pytest

from fakes import Client, FakeEngine

URL = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4}


@pytest.mark.parametrize("count", [0, 1, 5, 20])
def test_api_13_exactly_as_many_as_asked_for(count: int):
    client = Client.of(FakeEngine())
    body = {**BODY, "logprobs": True, "top_logprobs": count}
    content = client.post(URL, body).json()["choices"][0]["logprobs"]["content"]
    assert [len(entry["top_logprobs"]) for entry in content] == [count] * 4
    choices = [event["choices"][0] for event in client.events(URL, body)]
    streamed = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    assert [len(entry["top_logprobs"]) for entry in streamed] == [count] * 4


@pytest.mark.parametrize("logprobs", [None, False])
def test_api_13_top_logprobs_need_logprobs(logprobs: bool | None):
    response = Client.of(FakeEngine()).post(URL, {**BODY, "top_logprobs": 5, "logprobs": logprobs})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "top_logprobs")
