"""Tools are checked, a named or required call is enforced, and a call streams as it stands in the whole answer."""

import json
from typing import Any

import pytest

from canary import Canary
from fakes import Client, FakeEngine, parse_events

URL = "/v1/chat/completions"
USER = [{"role": "user", "content": "What is the weather in Oslo?"}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
NAMED = {"type": "function", "function": {"name": "weather"}}
CALL = 'Let me see. <tool_call>\n{"name": "weather", "arguments": {"city": "Ørsta \\"x\\" 🫠"}}\n</tool_call>'


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": []}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": NAMED}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "nobody"}}}, "tool_choice"),
    ],
)
def test_api_24_what_cannot_be_called_is_a_400(fields: dict[str, Any], param: str):
    error = Client.of(FakeEngine()).post(URL, {"messages": USER, **fields}).json()["error"]
    assert (error["code"], error["param"].split(".")[0]) == (400, param)


def test_api_24_none_needs_no_tools():
    assert Client.of(FakeEngine(script=[65])).post(URL, {"messages": USER, "tool_choice": "none"}).status_code == 200


@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_api_24_name_and_id_come_once_and_the_arguments_join(size: int):
    engine = FakeEngine(num_tokens_per_delta=size)
    engine.script = engine.ids(CALL)
    client = Client.of(engine)
    body = {"messages": USER, "tools": [TOOL], "max_tokens": 500}
    template = engine.tokenizer.chat_template or ""
    engine.tokenizer.replace_chat_template(template + "{# <tool_call> #}")
    whole = client.post(URL, body).json()["choices"][0]
    assert whole["finish_reason"] == "tool_calls"
    (call,) = whole["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": 'Ørsta "x" 🫠'}
    choices = [event["choices"][0] for event in client.events(URL, body)]
    pieces = [piece for choice in choices for piece in choice["delta"].get("tool_calls") or []]
    assert [piece["function"]["name"] for piece in pieces if piece["function"].get("name")] == ["weather"]
    assert len([piece["id"] for piece in pieces if piece.get("id")]) == 1
    joined = "".join(piece["function"].get("arguments") or "" for piece in pieces)
    assert joined == call["function"]["arguments"]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["tool_calls"]


@pytest.mark.e2e
@pytest.mark.parametrize(("choice", "reason"), [("required", "tool_calls"), (NAMED, "stop")], ids=["required", "named"])
@pytest.mark.parametrize("stream", [False, True])
def test_api_24_a_demanded_call_obeys_its_schema(canary: Canary, choice: Any, reason: str, stream: bool):
    body = {"messages": USER, "tools": [TOOL], "tool_choice": choice, "max_tokens": 100, "temperature": 0}
    response = canary.client.post(URL, json={**body, "stream": stream})
    if stream:
        choices = [event["choices"][0] for event in parse_events(response)]
        pieces = [piece for one in choices for piece in one["delta"].get("tool_calls") or []]
        first = [piece for piece in pieces if piece["index"] == 0]  # "required" may be more than one call
        arguments = "".join(piece["function"].get("arguments") or "" for piece in first)
        finish = choices[-1]["finish_reason"]
        assert not "".join(one["delta"].get("content") or "" for one in choices)
    else:
        one = response.json()["choices"][0]
        arguments, finish = one["message"]["tool_calls"][0]["function"]["arguments"], one["finish_reason"]
        assert not one["message"]["content"]
    assert json.loads(arguments)["city"] in ("Oslo", "Rome")
    assert finish == reason


@pytest.mark.e2e
def test_api_24_a_required_call_that_is_cut_says_length(canary: Canary):
    body = {"messages": USER, "tools": [TOOL], "tool_choice": "required", "max_tokens": 3, "temperature": 0}
    assert canary.client.post(URL, json=body).json()["choices"][0]["finish_reason"] == "length"
