"""Chats over a fake engine that writes known turns, read streamed and whole."""

import json
import re
from dataclasses import replace
from typing import Any

from fakes import Client, FakeEngine

URL = "/v1/chat/completions"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "d", "parameters": SCHEMA}}
    for name in ("get_weather", "get_time")
]
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "tools": TOOLS}
ARGUMENTS = '{"city": "Zürich 🧎", "deep": {"a": [1, "\\"}]</tool_call>"], "b": null}}'
ONE = f'Let me look.\n<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
TWO = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_time", "arguments": {"city": "Rome"}}\n</tool_call>'
)
STYLED = {
    "hermes": TWO,
    "llama3_json": '{"name": "get_weather", "parameters": {"city": "Bern"}}; '
    '{"name": "get_time", "parameters": {"city": "Rome"}}',
    "mistral": '[TOOL_CALLS]get_weather[ARGS]{"city": "Bern"}[TOOL_CALLS]get_time[ARGS]{"city": "Rome"}',
    "pythonic": "[get_weather(city='Bern'), get_time(city='Rome')]",
}


def scripted(text: str, **options: Any) -> tuple[FakeEngine, Client]:
    settings = {name: options.pop(name) for name in ("tool_call_parser", "reasoning_parser") if name in options}
    engine = FakeEngine(**options)
    engine.config = replace(engine.config, **settings)
    engine.script = engine.ids(text)
    return engine, Client.of(engine)


def prompt_text(engine: FakeEngine) -> str:
    return engine.tokenizer.decode(engine.calls[-1].prompt_ids, skip_special_tokens=False)


def merged(events: list[dict[str, Any]], index: int = 0) -> dict[str, Any]:
    """The choice that the deltas of a stream join to, in the shape of an unstreamed one; checks the order of chunks."""
    choices = [choice for event in events for choice in event["choices"] if choice["index"] == index]
    deltas = [choice["delta"] for choice in choices]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert all("role" not in delta for delta in deltas[1:])
    assert [choice["finish_reason"] is not None for choice in choices] == [False] * (len(choices) - 1) + [True]
    assert deltas[-1] == {}
    calls: list[dict[str, Any]] = []
    for delta in deltas:
        for piece in delta.get("tool_calls", ()):
            if piece["index"] == len(calls):
                assert piece.keys() == {"index", "id", "type", "function"} and piece["function"]["name"]
                calls.append({"id": piece["id"], "type": piece["type"], "function": dict(piece["function"])})
            else:
                assert piece.keys() == {"index", "function"} and piece["function"].keys() == {"arguments"}
                assert piece["index"] == len(calls) - 1
                calls[-1]["function"]["arguments"] += piece["function"]["arguments"]
    content = "".join(delta.get("content", "") for delta in deltas)
    reasoning = "".join(delta.get("reasoning", "") for delta in deltas)
    reason = choices[-1]["finish_reason"]
    message: dict[str, Any] = {
        "role": "assistant",
        "content": content or (None if calls and reason != "stop" else ""),
    }
    if reasoning:
        message["reasoning"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return {"message": message, "finish_reason": reason}


def both(client: Client, body: dict[str, Any]) -> dict[str, Any]:
    """The choice that a body gets, which must be the same streamed; ids of calls are checked and left out."""
    whole = client.post(URL, body)
    assert whole.status_code == 200, whole.text
    choice = whole.json()["choices"][0]
    choices = [{key: choice[key] for key in ("message", "finish_reason")}, merged(client.events(URL, body))]
    for answer in choices:
        calls = answer["message"].get("tool_calls", [])
        ids = [call.pop("id") for call in calls]
        assert len(set(ids)) == len(ids)
        assert all(re.fullmatch("call_[0-9a-f]{24}|[A-Za-z0-9]{9}", call_id) for call_id in ids)
        assert all(call.pop("type") == "function" for call in calls)
    assert choices[0] == choices[1]
    return choices[0]


def calls_of(choice: dict[str, Any]) -> list[tuple[str, Any]]:
    calls = choice["message"].get("tool_calls", [])
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]
