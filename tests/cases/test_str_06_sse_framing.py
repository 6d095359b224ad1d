"""A stream byte by byte, as a client that parses server-sent events by itself sees it.

Reported: chunks without a finish_reason key, usage in the finish chunk or twice, a missing [DONE], a connection that
cannot be used again (vllm#19662, vllm#36944, TheTom/vllm-swift#19, vllm-project/vllm-metal#199).
"""

import json
from typing import Any

import httpx
import pytest

from pelton.config import EngineConfig

from canary import Canary
from fakes import Client, FakeEngine

pytestmark = pytest.mark.e2e

URL = "/v1/chat/completions"
PROMPTS = {"short": "Count to ten.", "long": "count these words " * 250}


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200
    assert response.headers["content-type"].split(";")[0] == "text/event-stream"
    blocks = response.content.split(b"\n\n")
    assert blocks.pop() == b""
    assert blocks.pop() == b"data: [DONE]"
    assert all(block.startswith(b"data: {") and b"\n" not in block for block in blocks)
    return [json.loads(block[6:]) for block in blocks]


@pytest.mark.parametrize("length", PROMPTS)
@pytest.mark.parametrize("include_usage", [True, False])
def test_str_06_frames_of_a_stream(canary: Canary, length: str, include_usage: bool):
    body: dict[str, Any] = {"messages": [{"role": "user", "content": PROMPTS[length]}], "max_tokens": 5}
    body |= {"stream": True, "temperature": 0, "ignore_eos": True, "stream_options": {"include_usage": include_usage}}
    with httpx.Client(base_url=canary.url, timeout=60) as client:
        events = events_of(client.post(URL, json=body))
        # The same connection takes the next request.
        assert events_of(client.post(URL, json=body))[-1]["choices"] == events[-1]["choices"]
    chunks = events[:-1] if include_usage else events
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [list(choice["delta"]) for choice in choices[:1]] == [["role", "content"]]
    assert all("role" not in choice["delta"] for choice in choices[1:])
    assert all("finish_reason" in choice for choice in choices)
    assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
    assert choices[-1]["finish_reason"] == "length"
    assert choices[-1]["delta"] == {}
    with_usage = [event for event in events if event["usage"] is not None]
    if include_usage:
        assert with_usage == [events[-1]]
        assert events[-1]["choices"] == []
        assert events[-1]["usage"]["completion_tokens"] == 5
    else:
        assert not with_usage
    assert len({event["id"] for event in events}) == len({event["created"] for event in events}) == 1


def test_str_06_a_prompt_of_8000_words_streams_where_it_fits():
    engine = FakeEngine(
        script=FakeEngine().ids("A") * 5, config=EngineConfig(max_model_len=65536, served_model_name="tiny")
    )
    body = {"messages": [{"role": "user", "content": "word " * 8000}], "max_tokens": 5, "stream": True}
    events = events_of(Client.of(engine).post(URL, {**body, "stream_options": {"include_usage": True}}))
    assert events[-1]["usage"]["prompt_tokens"] > 8000
    assert [event["choices"][0]["delta"].get("content") for event in events[:-1]] == ["", *"AAAAA", None]


def test_str_06_a_prompt_of_8000_words_is_refused_before_the_stream_begins(canary: Canary):
    body = {"messages": [{"role": "user", "content": "word " * 8000}], "stream": True, "max_tokens": 5}
    response = canary.client.post(URL, json=body)
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/json"
    assert "maximum context length is 2048 tokens" in response.json()["error"]["message"]
    canary.check()
