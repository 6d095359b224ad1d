"""Continuous usage is on every chunk and never falls; stream options are for streams."""

import pytest

from fakes import Client, FakeEngine

URLS = ["/v1/completions", "/v1/chat/completions"]
BODY = {"prompt": "x", "messages": [{"role": "user", "content": "x"}], "max_tokens": 9, "n": 2, "seed": 1}


@pytest.mark.parametrize("url", URLS)
def test_api_11_usage_never_falls_and_ends_at_the_whole(url: str):
    client = Client.of(FakeEngine())
    events = client.events(url, {**BODY, "stream_options": {"include_usage": True, "continuous_usage_stats": True}})
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert counts[-1] == 18
    assert all(
        event["usage"]["total_tokens"] == event["usage"]["prompt_tokens"] + event["usage"]["completion_tokens"]
        for event in events
    )


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("stream", [None, False])
def test_api_11_stream_options_without_a_stream_are_a_400(url: str, stream: bool | None):
    body = {**BODY, "stream": stream, "stream_options": {"include_usage": True}}
    response = Client.of(FakeEngine()).post(url, body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "stream_options")
