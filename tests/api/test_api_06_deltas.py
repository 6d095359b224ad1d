"""Streamed deltas join to the unstreamed text, and one chunk of each choice has a finish_reason."""

import pytest

from fakes import Client, FakeEngine


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("url", ["/v1/completions", "/v1/chat/completions"])
def test_api_06_deltas_join_and_one_chunk_finishes(url: str, size: int):
    body = {"prompt": "x", "messages": [{"role": "user", "content": "x"}], "n": 3, "seed": 5, "max_tokens": 30}
    client = Client.of(FakeEngine(num_tokens_per_delta=size))
    whole = client.post(url, body).json()["choices"]
    streamed = [event["choices"][0] for event in client.events(url, body)]
    for expected in whole:
        mine = [choice for choice in streamed if choice["index"] == expected["index"]]
        texts = [choice["text"] if "text" in choice else choice["delta"].get("content", "") for choice in mine]
        assert "".join(texts) == (expected["text"] if "text" in expected else expected["message"]["content"])
        assert [choice["finish_reason"] for choice in mine if choice["finish_reason"]] == [expected["finish_reason"]]
        assert mine[-1]["finish_reason"] is not None
