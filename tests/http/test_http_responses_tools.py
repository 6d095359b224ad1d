"""Responses read by the parsers of real models, and formats that cannot be met."""

from dataclasses import replace
from typing import Any

import pytest

from bracketed import URL, error_of, parse_event_stream, parse_response, scripted
from fakes import Client, FakeEngine

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL: dict[str, Any] = {"type": "function", "name": "f", "description": "d", "parameters": SCHEMA, "strict": True}
THOUGHT = "hello hello\n\nhello"
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
TURN = f"<think>\n{THOUGHT}\n</think>\n\nhello\n{CALL}\n{CALL}"


def thinking(text: str, **options: Any) -> tuple[FakeEngine, Client]:
    engine, _ = scripted(text, **options)
    engine.config = replace(engine.config, tool_call_parser="hermes", reasoning_parser="qwen3")
    return engine, Client.of(engine)


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_text_and_calls_of_a_model(stream: bool, size: int):
    engine, client = thinking(TURN, num_tokens_per_delta=size)
    body = {"input": "hi", "tools": [TOOL], "include": ["message.output_text.logprobs"], "stream": stream}
    answer = client.post(URL, body)
    response = parse_event_stream(answer)[-1]["response"] if stream else parse_response(answer)
    assert response["status"] == "completed" and response["tools"] == [TOOL]
    reasoning, message, *calls = response["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": THOUGHT}]
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] == len(engine.ids(THOUGHT))
    assert message["content"][0]["text"].strip() == "hello"
    assert "".join(entry["token"] for entry in message["content"][0]["logprobs"]).strip() == "hello"
    assert [(call["type"], call["name"], call["arguments"]) for call in calls] == [
        ("function_call", "f", '{"a": 1}'),
        ("function_call", "f", '{"a": 1}'),
    ]
    assert len({call["call_id"] for call in calls}) == 2


def test_one_call_where_calls_are_not_parallel():
    _, client = thinking(TURN)
    response = parse_response(client.post(URL, {"input": "hi", "tools": [TOOL], "parallel_tool_calls": False}))
    assert [item["type"] for item in response["output"]] == ["reasoning", "message", "function_call"]


def test_calls_are_text_where_no_tools_are_given():
    _, client = thinking(CALL)
    (message,) = parse_response(client.post(URL, {"input": "hi"}))["output"]
    assert message["content"][0]["text"] == CALL


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{**TOOL, "parameters": {"type": "array"}}]}, "tools[0].parameters.type"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "nonsense"}}}},
            "text.format.schema",
        ),
        (
            {"text": {"format": {"type": "json_object"}}, "structured_outputs": {"regex": "a"}},
            "structured_outputs.regex",
        ),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
    ],
)
def test_what_cannot_be_met_is_named(fields: dict[str, Any], param: str):
    answer = Client.of(FakeEngine()).post(URL, {"input": "hi", **fields})
    assert answer.status_code == 400
    assert error_of(answer)["param"] == param, error_of(answer)
    assert "response_format" not in error_of(answer)["message"] and ".function" not in error_of(answer)["message"]


def test_a_format_reaches_the_engine_as_a_grammar():
    engine, client = scripted('{"a": 1}')
    body = {"input": "hi", "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}}
    assert parse_response(client.post(URL, body))["text"]["format"]["schema"] == SCHEMA
    assert engine.calls[0].params.grammar is not None


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "f"}])
def test_a_call_that_is_asked_for_is_enforced(choice: object):
    engine, client = thinking(CALL)
    engine.config = replace(engine.config, reasoning_parser="none")
    response = parse_response(client.post(URL, {"input": "hi", "tools": [TOOL], "tool_choice": choice}))
    assert [(item["type"], item["status"]) for item in response["output"]] == [("function_call", "completed")]
    assert response["status"] == "completed" and response["tool_choice"] == choice
    assert engine.calls[0].params.grammar is not None
    cut = parse_response(
        client.post(URL, {"input": "hi", "tools": [TOOL], "tool_choice": choice, "max_output_tokens": 40})
    )
    assert cut["status"] == "incomplete" and cut["output"][0]["status"] == "incomplete"
