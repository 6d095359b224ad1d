"""The Messages API over a scripted engine: bodies, answers, streams, errors."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest
from anthropic.types import ErrorResponse, Message, MessageTokensCount

from pelton.errors import EngineDeadError, RequestError
from pelton.http.anthropic.blocks import BlockWriter, content_blocks
from pelton.http.anthropic.conversation import chat_messages
from pelton.http.anthropic.requests import InputMessage
from pelton.http.anthropic.responses import TextBlock, ThinkingBlock, ToolUseBlock
from pelton.http.openai.parts import Part, Reasoning, Text, ToolCallArguments, ToolCallStart
from pelton.types import EngineStats

from fakes import Client, FakeEngine

URL = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
BODY: dict[str, Any] = {"model": "tiny", "max_tokens": 50, "messages": [{"role": "user", "content": "hello"}]}


def engine_saying(text: str, **settings: Any) -> FakeEngine:
    engine = FakeEngine(**settings)
    engine.script = engine.ids(text)
    return engine


def named_events(response: httpx.Response) -> list[tuple[str, dict[str, Any]]]:
    """Every event of a stream, split strictly: a name, a line of data, a blank line."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = response.content.decode().split("\n\n")
    assert blocks.pop() == ""
    events: list[tuple[str, dict[str, Any]]] = []
    for block in blocks:
        match = re.fullmatch(r"event: (\w+)\ndata: (.*)", block)
        assert match is not None, block
        events.append((match[1], json.loads(match[2])))
    assert all(name == data["type"] for name, data in events)
    return events


def prompt_of(engine: FakeEngine, body: dict[str, Any]) -> str:
    """The text that the engine gets for a body."""
    response = Client.of(engine).post(URL, {**BODY, **body})
    assert response.status_code == 200, response.text
    return engine.tokenizer.decode(engine.calls[-1].prompt_ids, skip_special_tokens=False)


def error_of(engine: FakeEngine, body: dict[str, Any], url: str = URL) -> tuple[int, str, str]:
    response = Client.of(engine).post(url, body)
    error = ErrorResponse.model_validate(response.json(), strict=True)
    assert set(response.json()) == {"type", "error"}
    return response.status_code, error.error.type, error.error.message


def test_a_message_has_the_shape_that_the_api_names():
    engine = engine_saying("Hi there!", num_cached_tokens=3)
    response = Client.of(engine).post(URL, BODY, headers={"x-request-id": "abc"})
    prompt = engine.calls[0].prompt_ids
    assert response.json() == {
        "type": "message",
        "id": "msg_abc",
        "role": "assistant",
        "model": "tiny",
        "content": [{"type": "text", "text": "Hi there!"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": len(prompt) - 3,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 3,
            "output_tokens": len(engine.script) + 1,
        },
    }
    message = Message.model_validate(response.json(), strict=True)
    assert message.content[0].type == "text" and message.usage.cache_read_input_tokens == 3


def test_a_stream_has_the_events_in_the_order_that_the_api_names():
    engine = engine_saying("Hi!", num_cached_tokens=2)
    events = named_events(Client.of(engine).post(URL, {**BODY, "stream": True}, headers={"x-request-id": "abc"}))
    num_prompt = len(engine.calls[0].prompt_ids)
    usage = {"input_tokens": num_prompt - 2, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 2}
    message = {"type": "message", "id": "msg_abc", "role": "assistant", "model": "tiny", "content": []}
    message |= {"stop_reason": None, "stop_sequence": None, "usage": {**usage, "output_tokens": 0}}
    assert [data for _, data in events] == [
        {"type": "message_start", "message": message},
        {"type": "ping"},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
            for text in ("H", "i", "!")
        ),
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {**usage, "output_tokens": 4},
        },
        {"type": "message_stop"},
    ]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("body", "stop_reason", "stop_sequence", "text"),
    [
        ({"max_tokens": 3}, "max_tokens", None, "abc"),
        ({"stop_sequences": ["zz", "de"]}, "stop_sequence", "de", "abc"),
        ({}, "end_turn", None, "abcdef"),
    ],
)
def test_why_a_message_ended_is_told(
    stream: bool, body: dict[str, Any], stop_reason: str, stop_sequence: str | None, text: str
):
    response = Client.of(engine_saying("abcdef")).post(URL, {**BODY, **body, "stream": stream})
    if stream:
        events = [data for _, data in named_events(response)]
        end = events[-2]["delta"]
        shown = "".join(data["delta"]["text"] for data in events if data["type"] == "content_block_delta")
    else:
        end = response.json()
        shown = end["content"][0]["text"]
    assert (end["stop_reason"], end["stop_sequence"], shown) == (stop_reason, stop_sequence, text)


def test_sampling_fields_reach_the_engine():
    engine = engine_saying("x")
    body = {**BODY, "temperature": 0.5, "top_p": 0.25, "top_k": 7, "metadata": {"user_id": "u"}, "unknown": 1}
    assert Client.of(engine).post(URL, body).status_code == 200
    params = engine.calls[0].params
    assert (params.temperature, params.top_p, params.top_k, params.max_tokens) == (0.5, 0.25, 7, 50)


def test_system_text_and_roles_become_the_chat():
    assert prompt_of(engine_saying(""), {"system": "Be brief."}) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    )
    blocks = [{"type": "text", "text": "A", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "B"}]
    assert prompt_of(engine_saying(""), {"system": blocks}).startswith("<|im_start|>system\nA\nB<|im_end|>\n")


def test_messages_of_one_role_in_a_row_are_one_turn():
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "b"}]}]
    assert prompt_of(engine_saying(""), {"messages": messages}).count("<|im_start|>user") == 1


def test_a_last_message_of_the_assistant_is_continued():
    messages = [*BODY["messages"], {"role": "assistant", "content": "The answer is"}]
    assert prompt_of(engine_saying(""), {"messages": messages}).endswith("<|im_start|>assistant\nThe answer is")


@pytest.mark.parametrize("content", ["", []])
def test_an_empty_last_message_of_the_assistant_is_begun(content: object):
    messages = [*BODY["messages"], {"role": "assistant", "content": content}]
    assert prompt_of(engine_saying(""), {"messages": messages}) == prompt_of(engine_saying(""), {})


def test_calls_results_and_thoughts_become_messages_of_the_chat():
    messages = [
        InputMessage(role="user", content="Weather?"),
        InputMessage(
            role="assistant",
            content=[
                {"type": "thinking", "thinking": "Ask.", "signature": "s"},
                {"type": "redacted_thinking", "data": "xyz"},
                {"type": "text", "text": "Looking."},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Köln"}},
                {"type": "tool_use", "id": "t2", "name": "clock", "input": {}},
            ],
        ),
        InputMessage(
            role="user",
            content=[
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "rain"}]},
                {"type": "tool_result", "tool_use_id": "t2", "is_error": True, "content": "no clock"},
                {"type": "text", "text": "Well?"},
            ],
        ),
    ]
    assert chat_messages(None, messages) == [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "Looking.",
            "reasoning_content": "Ask.",
            "tool_calls": [
                {
                    "id": "t1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city": "Köln"}'},
                },
                {"id": "t2", "type": "function", "function": {"name": "clock", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "content": "rain", "tool_call_id": "t1", "name": "weather"},
        {"role": "tool", "content": "Error: no clock", "tool_call_id": "t2", "name": "clock"},
        {"role": "user", "content": "Well?"},
    ]


def test_count_tokens_counts_the_prompt_of_the_same_message():
    engine = engine_saying("x")
    client = Client.of(engine)
    body = {**BODY, "system": "Be brief.", "messages": [{"role": "user", "content": "hello world " * 9}]}
    client.post(URL, body)
    del body["max_tokens"]
    response = client.post(COUNT, body)
    assert response.json() == {"input_tokens": len(engine.calls[0].prompt_ids)}
    assert MessageTokensCount.model_validate(response.json(), strict=True)
    assert len(engine.calls) == 1


def test_count_tokens_counts_what_is_too_long_to_answer():
    body = {"messages": [{"role": "user", "content": "HI" * 5000}]}
    assert Client.of(FakeEngine()).post(COUNT, body).json()["input_tokens"] > 5000
    assert error_of(FakeEngine(), {**BODY, **body})[:2] == (400, "invalid_request_error")


TOOL = {"name": "f", "input_schema": {"type": "object"}}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
CALL = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]}
RESULT = {"type": "tool_result", "tool_use_id": "t"}
QUESTION = {"role": "user", "content": "hello"}


def user(*blocks: object) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 2**31}, "max_tokens"),
        ({"temperature": 1.01}, "temperature must be at least 0.0 and at most 1.0"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"stop_sequences": [""]}, "stop_sequences: an empty string"),
        ({"stop_sequences": list("abcde")}, "stop_sequences: at most 4"),
        ({"messages": []}, "messages must hold"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages"),
        ({"messages": [{"role": "user", "content": ""}]}, r"messages\[0\].content must not be empty"),
        (user(), r"messages\[0\].content must not be empty"),
        (user({"type": "text", "text": "a"}, IMAGE), r"messages\[0\].content\[1\]: blocks of type 'image'"),
        (user({"type": "document", "source": {}}), r"messages\[0\].content\[0\]: blocks of type 'document'"),
        (user({"type": "text"}), r"messages\[0\].content\[0\].text must be a string"),
        (user({"text": "x"}), r"messages\[0\].content\[0\] must be an object with a type"),
        (user({"type": "tool_use", "id": "t", "name": "f", "input": {}}), "not supported in user messages"),
        (user(RESULT), "no tool_use block before it has the id 't'"),
        (
            {"messages": [QUESTION, CALL, *user({**RESULT, "content": [IMAGE]})["messages"]]},
            r"messages\[2\].content\[0\].content\[0\]: blocks of type 'image' are not supported in tool results",
        ),
        ({"messages": [QUESTION, CALL]}, "the last one calls tools"),
        ({"system": [IMAGE]}, r"system\[0\]: blocks of type 'image' are not supported in system"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, r"tools\[0\]: tools of type 'web_search"),
        ({"tools": [{"name": "f"}]}, r"tools\[0\].input_schema"),
        ({"tools": [{"input_schema": {}}]}, r"tools\[0\].name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name is required"),
        ({"tools": [TOOL], "tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "auto"}}, "tool_choice needs tools"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens is required"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "less than max_tokens"),
        ({"max_tokens": 2000, "thinking": {"type": "enabled", "budget_tokens": 1023}}, "at least 1024"),
        ({"mcp_servers": [{"url": "http://x"}]}, "mcp_servers"),
    ],
)  # fmt: skip
def test_what_cannot_be_answered_is_refused_by_name(body: dict[str, Any], words: str):
    engine = engine_saying("x")
    merged = {key: value for key, value in {**BODY, **body}.items() if value is not None}
    status, kind, message = error_of(engine, merged)
    assert (status, kind) == (400, "invalid_request_error")
    assert re.search(words, message), message
    assert engine.calls == []


def test_an_unknown_model_is_not_found():
    for url in (URL, COUNT):
        status, kind, message = error_of(FakeEngine(), {**BODY, "model": "claude"}, url)
        assert (status, kind) == (404, "not_found_error")
        assert message == "The model `claude` does not exist."


def test_errors_below_the_path_have_the_shape_too():
    response = Client.of(FakeEngine()).get("/v1/messages/nope")
    assert response.status_code == 404
    assert response.json()["error"]["type"] == "not_found_error"
    response = Client.of(FakeEngine()).get("/v1/messagesnope")
    assert response.json()["error"]["type"] == "NotFoundError"


def test_a_full_queue_is_a_rate_limit():
    engine = FakeEngine(stats=EngineStats(num_waiting=10))
    engine.config = replace(engine.config, max_queue=10)
    assert error_of(engine, BODY)[:2] == (429, "rate_limit_error")


def test_a_dead_engine_is_an_overload():
    engine = FakeEngine(fail_after=0, error=EngineDeadError("gone"))
    assert error_of(engine, BODY)[:2] == (503, "overloaded_error")
    assert error_of(engine, {**BODY, "stream": True})[:2] == (503, "overloaded_error")


def test_a_bug_shows_nothing_of_itself():
    status, kind, message = error_of(FakeEngine(fail_after=0), BODY)
    assert (status, kind, message) == (500, "api_error", "Internal server error")


def test_an_error_within_a_stream_is_its_last_event():
    engine = engine_saying("abcdef", fail_after=2, error=RequestError("no more", status=500))
    events = named_events(Client.of(engine).post(URL, {**BODY, "stream": True}))
    assert [name for name, _ in events] == [
        *("message_start", "ping", "content_block_start", "content_block_delta", "content_block_delta", "error"),
    ]
    assert events[-1][1] == {"type": "error", "error": {"type": "api_error", "message": "no more"}}


@pytest.mark.parametrize("stream", [False, True])
def test_a_message_that_the_server_ends_is_an_error(stream: bool):
    engine = engine_saying("abc", aborting=True)
    assert error_of(engine, {**BODY, "stream": stream})[:2] == (503, "overloaded_error")


BEARER = {"Authorization": "Bearer key"}


@pytest.mark.parametrize("headers", [{"x-api-key": "key"}, BEARER, {"x-api-key": "no", **BEARER}])
def test_either_header_opens(headers: dict[str, str]):
    engine = engine_saying("x")
    engine.config = replace(engine.config, api_key=("other", "key"))
    assert Client.of(engine).post(URL, BODY, headers=headers).status_code == 200
    assert engine.calls[0].salt == "1:"


@pytest.mark.parametrize("headers", [{}, {"x-api-key": "ke"}, {"x-api-key": ""}, {"Authorization": "Bearer "}])
def test_a_wrong_key_is_told_in_the_shape_of_the_api(headers: dict[str, str]):
    engine = engine_saying("x")
    engine.config = replace(engine.config, api_key=("key",))
    response = Client.of(engine).post(URL, BODY, headers=headers)
    assert response.status_code == 401
    assert response.json()["error"]["type"] == "authentication_error"


CALLING: list[Part] = [
    *(Reasoning("Let me "), Reasoning("see."), Text("\n"), Text(" Look"), Text("ing."), Text("\n\n")),
    *(ToolCallStart(0, "call_1", "f"), ToolCallArguments(0, '{"a":'), ToolCallArguments(0, " 1}"), Text("\n")),
    *(ToolCallStart(1, "x", "g"), ToolCallArguments(1, '{"cut'), Text("  ")),
]


def test_blocks_are_cut_where_the_kind_of_part_changes():
    writer = BlockWriter(shows_thinking=True)
    assert content_blocks(CALLING, writer) == [
        ThinkingBlock("Let me see.", "unsigned"),
        TextBlock("\n Looking.\n\n"),
        ToolUseBlock("toolu_1", "f", {"a": 1}),
        ToolUseBlock("toolu_x", "g", {}),
    ]
    assert writer.made_calls
    assert content_blocks([Text(" \n")], BlockWriter(shows_thinking=True)) == []


def test_thoughts_can_be_left_out():
    blocks = content_blocks(CALLING, BlockWriter(shows_thinking=False))
    assert blocks[0] == ThinkingBlock("", "unsigned")


def test_every_block_of_a_stream_is_opened_filled_and_closed():
    writer = BlockWriter(shows_thinking=True)
    events = [event for part in CALLING for event in writer.add(part)] + writer.finish()
    shown: Sequence[tuple[str, int]] = [
        (getattr(event, "delta", event).__struct_config__.tag, event.index) for event in events
    ]
    assert shown == [
        *[("content_block_start", 0), ("thinking_delta", 0), ("thinking_delta", 0), ("signature_delta", 0)],
        *[("content_block_stop", 0), ("content_block_start", 1), ("text_delta", 1), ("text_delta", 1)],
        *[("text_delta", 1), ("content_block_stop", 1), ("content_block_start", 2), ("input_json_delta", 2)],
        *[("input_json_delta", 2), ("content_block_stop", 2), ("content_block_start", 3), ("input_json_delta", 3)],
        ("content_block_stop", 3),
    ]


WEATHER_TOOLS = [{"name": name, "input_schema": {"type": "object"}} for name in ("get_weather", "get_time")]


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ({"type": "any"}, {"get_weather", "get_time"}),
        ({"type": "any", "disable_parallel_tool_use": True}, {"get_weather", "get_time"}),
        ({"type": "tool", "name": "get_time"}, {"get_time"}),
    ],
)
def test_a_call_that_must_be_made_is_a_grammar(choice: dict[str, Any], names: set[str]):
    engine = engine_saying('<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>')
    body = {**BODY, "max_tokens": 500, "tools": WEATHER_TOOLS, "tool_choice": choice}
    answer = Client.of(engine).post(URL, body).json()
    grammar = engine.calls[0].params.grammar or ""
    assert {name for name in ("get_weather", "get_time") if name in grammar} == names
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("tool_use", None)
    (call,) = answer["content"]
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "get_time", {})


def test_an_output_format_is_a_grammar():
    engine = engine_saying('{"a": 1}')
    schema = {"type": "object", "properties": {"zebra": {"type": "integer"}}}
    body = {**BODY, "output_config": {"format": {"type": "json_schema", "schema": schema}}}
    assert Client.of(engine).post(URL, body).json()["content"] == [{"type": "text", "text": '{"a": 1}'}]
    assert "zebra" in (engine.calls[0].params.grammar or "")
    bad = {"type": "json_schema", "schema": {"type": "nonsense"}}
    assert error_of(engine, {**BODY, "output_config": {"format": bad}})[:2] == (400, "invalid_request_error")
