"""Every tool_choice, with a model that has never seen a tool: calls come by constraint and not by luck.

Reported: a required call that is none, arguments that do not fit the schema, finish_reason tool_calls with no calls,
other results streamed than not, and tool_choice none that still calls (vllm#9426, vllm#10000, vllm#25054, vllm#53255,
vllm#53363, vllm#50477, vllm#30613, vllm#40399).
"""

import json
from typing import Any

import jsonschema
import pytest

from canary import Canary
from fakes import parse_events

pytestmark = pytest.mark.e2e

URL = "/v1/chat/completions"
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Bern", "Rome", "Oslo"]},
        "days": {
            "type": "array",
            "items": {"type": "integer", "minimum": 1, "maximum": 9},
            "minItems": 1,
            "maxItems": 2,
        },
        "unit": {"type": "string", "enum": ["celsius", "kelvin"]},
    },
    "required": ["city", "days"],
}
NOTHING = {"type": "object", "properties": {}}
SCHEMAS = {"get_weather": WEATHER, "get_time": NOTHING}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()]
BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Tell me a long story about a dragon."}],
    "temperature": 0,
    "max_tokens": 60,
}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


CHOICES = [None, "none", "auto", "required", named("get_weather"), named("get_times")]


def ask(canary: Canary, body: dict[str, Any], *, stream: bool) -> dict[str, Any] | int:
    """The choice in its unstreamed shape without ids, or the status of the refusal."""
    response = canary.client.post(URL, json={**body, "stream": stream})
    if response.status_code != 200:
        assert response.json()["error"]["param"] in ("tools", "tool_choice")
        return response.status_code
    if not stream:
        choice = response.json()["choices"][0]
        message = choice["message"]
        calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
        return {"content": message["content"] or "", "calls": calls, "reason": choice["finish_reason"]}
    chunks = [event["choices"][0] for event in parse_events(response)]
    streamed: list[list[str]] = []
    for chunk in chunks:
        for piece in chunk["delta"].get("tool_calls", ()):
            if "name" in piece["function"]:
                streamed.append([piece["function"]["name"], ""])
            streamed[piece["index"]][1] += piece["function"]["arguments"]
    content = "".join(chunk["delta"].get("content", "") for chunk in chunks)
    calls = [(name, arguments) for name, arguments in streamed]
    return {"content": content, "calls": calls, "reason": chunks[-1]["finish_reason"]}


def expected_status(choice: Any, num_tools: int | None) -> int:
    if num_tools == 0 or (num_tools is None and choice not in (None, "none")):
        return 400
    return 400 if choice == CHOICES[-1] else 200


@pytest.mark.parametrize("num_tools", [None, 0, 1, 2])
@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_tol_05_every_tool_choice(canary: Canary, choice: Any, num_tools: int | None):
    enforced = choice not in (None, "none", "auto")
    body = {**BODY, "max_tokens": 60 if enforced else 8, **({} if choice is None else {"tool_choice": choice})}
    if num_tools is not None:
        body["tools"] = TOOLS[:num_tools]
    answer = ask(canary, body, stream=False)
    assert ask(canary, body, stream=True) == answer
    if expected_status(choice, num_tools) != 200:
        assert answer == 400
        return
    assert isinstance(answer, dict)
    if not enforced:
        assert answer["content"] and not answer["calls"] and answer["reason"] in ("stop", "length")
        return
    assert answer["content"] == ""
    cut = answer["reason"] == "length"
    assert answer["reason"] == ("length" if cut else "tool_calls" if choice == "required" else "stop")
    complete = answer["calls"][:-1] if cut else answer["calls"]
    assert len(complete) >= 1
    for name, arguments in complete:
        jsonschema.validate(json.loads(arguments), SCHEMAS[name])
        assert name in list(SCHEMAS)[:num_tools]
    if choice not in ("required",):
        assert [name for name, _ in complete] == ["get_weather"]


@pytest.mark.parametrize(
    "style", ["{# [TOOL_CALLS][ARGS] #}", "{# [TOOL_CALLS] #}", "{# ipython #}", "{# [func_name1( #}"]
)
def test_tol_05_calls_are_enforced_in_every_style(canary: Canary, style: str):
    template = style + "{{ messages[0].content }}"
    body = {**BODY, "tools": TOOLS, "chat_template": template, "tool_choice": "required", "parallel_tool_calls": False}
    answer = ask(canary, body, stream=False)
    assert isinstance(answer, dict)
    assert ask(canary, body, stream=True) == answer
    ((name, arguments),) = answer["calls"]
    jsonschema.validate(json.loads(arguments), SCHEMAS[name])
    assert (answer["content"], answer["reason"]) == ("", "tool_calls")


def test_tol_05_a_required_call_that_is_cut_by_length(canary: Canary):
    for limit in (1, 5, 25):
        body = {**BODY, "tools": TOOLS, "tool_choice": "required", "max_tokens": limit, "parallel_tool_calls": False}
        answer = ask(canary, body, stream=True)
        assert isinstance(answer, dict) and (answer["content"], answer["reason"]) == ("", "length")


def test_tol_05_reasoning_comes_before_an_enforced_call(canary: Canary):
    template = "{{ messages[0].content }}<think>"
    body = {**BODY, "tools": TOOLS, "chat_template": template, "tool_choice": named("get_weather"), "max_tokens": 40}
    response = canary.client.post(URL, json=body).json()["choices"][0]
    assert response["message"]["reasoning"]
    assert response["message"]["content"] == ""


def test_tol_05_an_unsupported_schema_is_refused_by_name(canary: Canary):
    schema = {"type": "object", "properties": {"a": {"$ref": "https://example.com/a"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    response = canary.client.post(URL, json={**BODY, "tools": [TOOLS[0], tool], "tool_choice": "required"})
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("tools[1].function.parameters")
    canary.check()


def test_tol_05_enforced_calls_leave_no_answer_to_constrain(canary: Canary):
    body = {**BODY, "tools": TOOLS, "response_format": {"type": "json_object"}}
    response = canary.client.post(URL, json={**body, "tool_choice": "required"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tool_choice")
    answer = ask(canary, {**body, "max_tokens": 30, "tool_choice": "auto"}, stream=False)
    assert isinstance(answer, dict)
    if answer["calls"]:
        assert answer["calls"][0][0] in SCHEMAS
    elif answer["reason"] == "stop":
        assert isinstance(json.loads(answer["content"]), dict)
