"""What the tests of the Responses API share: strict parsing, and a chat whose turns are read by a scripted parser."""

import dataclasses
import json
from typing import Any

import httpx
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from pelton.http.openai.parts import Part, Reasoning, Text, ToolCallArguments, ToolCallStart
from pelton.http.openai.requests import ChatBody
from pelton.http.openai.responses_api import draft

from fakes import Client, FakeEngine

URL = "/v1/responses"

_response = TypeAdapter(Response)
_event = TypeAdapter(ResponseStreamEvent)


def scripted(text: str, **options: Any) -> tuple[FakeEngine, Client]:
    engine = FakeEngine(**options)
    engine.script = engine.ids(text)
    return engine, Client.of(engine)


def parse_response(answer: httpx.Response) -> dict[str, Any]:
    """The JSON of a response, which OpenAI's own type must accept without any conversion."""
    assert answer.status_code == 200, answer.text
    _response.validate_json(answer.content, strict=True)
    return answer.json()


def parse_event_stream(answer: httpx.Response, first: int = 0) -> list[dict[str, Any]]:
    """Split a stream's bytes strictly: each event is named by its type, its number is one more than the last."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = answer.content.decode().split("\n\n")
    assert blocks.pop() == ""
    events: list[dict[str, Any]] = []
    for number, block in enumerate(blocks, first):
        name, data = block.split("\n")
        data = data.removeprefix("data: ")
        _event.validate_json(data, strict=True)
        event = json.loads(data)
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == number
        events.append(event)
    return events


def error_of(answer: httpx.Response) -> dict[str, Any]:
    return answer.json()["error"]


def prompt_text(engine: FakeEngine) -> str:
    return engine.tokenizer.decode(engine.calls[-1].prompt_ids, skip_special_tokens=False)


class BracketParser:
    """Reads "[reasoning]", "<name:arguments>" and text, character by character."""

    def __init__(self) -> None:
        self._state = "text"
        self._name = ""
        self._num_calls = 0

    def push(self, text: str) -> list[Part]:
        return [part for character in text for part in self._read(character)]

    def finish(self) -> list[Part]:
        return []

    def finish_reason(self, reason: str) -> str:
        return "tool_calls" if self._num_calls and reason == "stop" else reason

    def _read(self, character: str) -> list[Part]:
        match self._state, character:
            case "text", "[":
                self._state = "reasoning"
            case "text", "<":
                self._state, self._name = "name", ""
            case "text", _:
                return [Text(character)]
            case ("reasoning", "]") | ("arguments", ">"):
                self._state = "text"
            case "reasoning", _:
                return [Reasoning(character)]
            case "name", ":":
                self._state = "arguments"
                self._num_calls += 1
                return [ToolCallStart(self._num_calls - 1, f"call_{self._num_calls}", self._name)]
            case "name", _:
                self._name += character
            case _:
                return [ToolCallArguments(self._num_calls - 1, character)]
        return []


def bracketed(monkeypatch: pytest.MonkeyPatch) -> list[ChatBody]:
    """Let BracketParser read every turn, without tools. The list gets the chats that responses are made into."""
    seen: list[ChatBody] = []
    chat_job = draft.chat_job

    async def read_by_brackets(service: Any, request: Any, body: ChatBody, *, prefix: str) -> Any:
        seen.append(body)
        plain = ChatBody(messages=body.messages, max_completion_tokens=body.max_completion_tokens)
        plain.request_id, plain.logprobs, plain.top_logprobs = body.request_id, body.logprobs, body.top_logprobs
        job = await chat_job(service, request, plain, prefix=prefix)
        return dataclasses.replace(job, new_parser=BracketParser)

    monkeypatch.setattr(draft, "chat_job", read_by_brackets)
    return seen
