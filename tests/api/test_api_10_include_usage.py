"""Usage is null on every chunk unless asked for, and then a last chunk of its own."""

import pytest

from fakes import Client, FakeEngine

URLS = ["/v1/completions", "/v1/chat/completions"]
BODY = {"prompt": "x", "messages": [{"role": "user", "content": "x"}], "max_tokens": 5, "seed": 1}


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("options", [{}, {"stream_options": None}, {"stream_options": {"include_usage": False}}])
def test_api_10_usage_is_null_where_it_is_not_asked_for(url: str, options: dict[str, object]):
    events = Client.of(FakeEngine()).events(url, {**BODY, **options})
    assert all(event["usage"] is None and event["choices"] for event in events)


@pytest.mark.parametrize("url", URLS)
def test_api_10_the_last_chunk_has_usage_and_no_choices(url: str):
    client = Client.of(FakeEngine())
    *chunks, last = client.events(url, {**BODY, "stream_options": {"include_usage": True}})
    assert last["choices"] == []
    assert last["usage"] == client.post(url, BODY).json()["usage"]
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)
