"""POST /v1/responses over a fake engine that emits known tokens: whole answers, what becomes of input, and errors."""

import json
from typing import Any

import pytest

from pelton.errors import RequestError

from bracketed import URL, bracketed, error_of, parse_response, prompt_text, scripted
from fakes import Client, FakeEngine

ASSISTANT = "<|im_start|>assistant\n"


def said(role: str, text: str) -> str:
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def test_whole_answer():
    engine, client = scripted("hello world é", num_cached_tokens=5)
    response = parse_response(client.post(URL, {"input": "hi", "model": "tiny", "temperature": 0.5, "top_p": 0.9}))
    response_id, (message,) = response.pop("id"), response.pop("output")
    assert response_id.startswith("resp_") and len(response_id) == 37
    assert message.pop("id").startswith("msg_")
    assert message == {
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "hello world é", "annotations": [], "logprobs": []}],
    }
    assert 0 <= response.pop("completed_at") - response.pop("created_at") < 60
    assert response == {
        "object": "response",
        "status": "completed",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "metadata": {},
        "model": "tiny",
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": None,
        "service_tier": "default",
        "store": True,
        "temperature": 0.5,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 0.9,
        "truncation": "disabled",
        "usage": {
            "input_tokens": len(engine.calls[0].prompt_ids),
            "input_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 0},
            "output_tokens": 10,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": len(engine.calls[0].prompt_ids) + 10,
        },
        "user": None,
    }
    assert prompt_text(engine) == said("user", "hi") + ASSISTANT


def test_an_answer_that_stops_at_once_is_an_empty_message():
    _, client = scripted("")
    (message,) = parse_response(client.post(URL, {"input": "hi"}))["output"]
    assert message["content"][0]["text"] == "" and message["status"] == "completed"


def test_the_answer_repeats_what_was_asked(monkeypatch: pytest.MonkeyPatch):
    bracketed(monkeypatch)
    _, client = scripted("x")
    asked = {
        "instructions": "be brief",
        "max_output_tokens": 9,
        "max_tool_calls": 3,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "prompt_cache_key": "k",
        "reasoning": {"effort": "low", "summary": "auto"},
        "safety_identifier": "s",
        "store": False,
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}},
        "tool_choice": {"type": "function", "name": "f"},
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}],
        "top_logprobs": 2,
        "truncation": "auto",
        "user": "u",
    }
    response = parse_response(client.post(URL, {"input": "hi", **asked}))
    assert response["text"].pop("verbosity") == "medium"
    assert {name: response[name] for name in asked} == asked


def test_fields_reach_the_engine():
    engine, client = scripted("x")
    fields = {
        "max_output_tokens": 7,
        "temperature": 0.25,
        "top_p": 0.5,
        "top_k": 3,
        "min_p": 0.125,
        "min_tokens": 2,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.75,
        "repetition_penalty": 1.5,
        "seed": 11,
        "stop": ["\n"],
        "stop_token_ids": [5],
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "priority": 4,
        "logit_bias": {"7": 50},
        "allowed_token_ids": [5, 6, 7],
        "cache_salt": "s",
    }
    parse_response(client.post(URL, {"input": "hi", **fields}))
    call = engine.calls[0]
    assert call.params.max_tokens == 7 and call.params.stop == ("\n",) and call.params.stop_token_ids == (5,)
    assert call.params.logit_bias == {7: 50.0} and call.params.allowed_token_ids == (5, 6, 7)
    assert call.priority == 4 and call.salt == ":s"
    same = {"temperature", "top_p", "top_k", "min_p", "min_tokens", "seed", "ignore_eos", "skip_special_tokens"}
    same |= {"presence_penalty", "frequency_penalty", "repetition_penalty", "include_stop_str_in_output"}
    for name in same:
        assert getattr(call.params, name) == fields[name], name


def test_max_output_tokens_makes_an_answer_incomplete():
    _, client = scripted("abcdef")
    response = parse_response(client.post(URL, {"input": "hi", "max_output_tokens": 3}))
    assert response["status"] == "incomplete" and response["completed_at"] is None
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["status"] == "incomplete"
    assert response["output"][0]["content"][0]["text"] == "abc"


def test_instructions_and_opening_system_messages_are_one_system_message():
    engine, client = scripted("x")
    items = [
        {"role": "developer", "content": "Be kind."},
        {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "Be quick."}]},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "c", "annotations": []}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "developer", "content": "Now stop."},
    ]
    parse_response(client.post(URL, {"input": items, "instructions": "Be brief."}))
    assert prompt_text(engine) == (
        said("system", "Be brief.\n\nBe kind.\n\nBe quick.")
        + said("user", "a\nb")
        + said("assistant", "c")
        + said("assistant", "no")
        + said("system", "Now stop.")
        + ASSISTANT
    )


def turns(num_turns: int, size: int) -> list[dict[str, str]]:
    """Turns of a number and two messages of `size` characters each, which are as many tokens."""
    return [
        {"role": role, "content": f"{number:03}".ljust(size, ".")}
        for number in range(num_turns)
        for role in ("user", "assistant")
    ]


@pytest.mark.parametrize(
    ("fields", "first"),
    [
        ({}, 8),  # a quarter of 2,048 tokens is left for the output
        ({"max_output_tokens": 48}, 6),
        ({"max_output_tokens": 2000}, 14),
        ({"max_output_tokens": 2048}, 14),
        ({"instructions": "x" * 300}, 9),
    ],
)
def test_truncation_drops_the_oldest_turns(fields: dict[str, Any], first: int):
    engine, client = scripted("x")
    items = [*turns(14, 100), {"role": "user", "content": "last"}]
    parse_response(client.post(URL, {"input": items, "truncation": "auto", **fields}))
    shown = prompt_text(engine)
    system = said("system", fields["instructions"]) if "instructions" in fields else ""
    rest = shown.removeprefix(system)
    assert shown.startswith(system)
    assert rest.startswith(said("user", f"{first:03}".ljust(100, ".")) if first < 14 else said("user", "last"))
    assert rest.endswith(said("user", "last") + ASSISTANT)
    room = min(fields.get("max_output_tokens", 512), 2047)
    for count, fits in ((0, True), (1, False)):  # one turn more would not have fitted
        dropped = items[2 * (first - count) :]
        text = system + "".join(said(item["role"], item["content"]) for item in dropped) + ASSISTANT
        assert (len(engine.ids(text)) <= 2048 - room) is fits or first == 14


def test_truncation_leaves_what_fits_and_refuses_a_last_turn_that_does_not():
    engine, client = scripted("x")
    parse_response(client.post(URL, {"input": turns(3, 50), "truncation": "auto"}))
    assert prompt_text(engine).startswith(said("user", "000".ljust(50, ".")))
    items = [*turns(3, 50), {"role": "user", "content": "x" * 3000}]
    answer = client.post(URL, {"input": items, "truncation": "auto"})
    assert answer.status_code == 400 and error_of(answer)["param"] == "input"
    assert "maximum context length is 2048" in error_of(answer)["message"]


def test_an_unfinished_assistant_message_at_the_end_is_continued():
    engine, client = scripted("x")
    items = [
        {"role": "user", "content": "hi"},
        {"type": "message", "role": "assistant", "status": "incomplete", "content": "Well"},
    ]
    parse_response(client.post(URL, {"input": items}))
    assert prompt_text(engine) == said("user", "hi") + ASSISTANT + "Well"


def test_calls_outputs_and_reasoning_become_messages_of_a_chat(monkeypatch: pytest.MonkeyPatch):
    chats = bracketed(monkeypatch)
    _, client = scripted("x")
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'}
    items = [
        {"role": "user", "content": "go"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"role": "assistant", "content": "wait"},
        call,
        {**call, "call_id": "c2", "arguments": ""},
        {**call, "call_id": "c3", "arguments": '{"a', "status": "incomplete"},
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "well"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None},
        {**call, "call_id": "c4"},
        {"type": "function_call_output", "call_id": "c4", "output": ""},
    ]
    parse_response(client.post(URL, {"input": items}))
    function = {"name": "f", "arguments": '{"a": 1}'}
    assert chats[0].messages == [
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "content": "wait",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": function},
                {"id": "c2", "type": "function", "function": {"name": "f", "arguments": ""}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "tool", "tool_call_id": "c2", "content": "two"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "well",
            "tool_calls": [{"id": "c4", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c4", "content": ""},
    ]


TOOL_F: dict[str, Any] = {"type": "function", "name": "f", "description": "d", "parameters": {}, "strict": None}
TOOL_G: dict[str, Any] = {"type": "function", "name": "g"}
CHAT_F = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}
CHAT_G = {"type": "function", "function": {"name": "g"}}


@pytest.mark.parametrize(
    ("fields", "tools", "choice"),
    [
        ({}, None, None),
        ({"tools": [], "tool_choice": "auto"}, None, None),
        ({"tools": [], "tool_choice": "required"}, None, "required"),
        ({"tools": [TOOL_F, TOOL_G]}, [CHAT_F, CHAT_G], None),
        ({"tools": [TOOL_F], "tool_choice": "none"}, [CHAT_F], "none"),
        (
            {"tools": [TOOL_F], "tool_choice": {"type": "function", "name": "f"}},
            [CHAT_F],
            {"type": "function", "function": {"name": "f"}},
        ),
        (
            {
                "tools": [TOOL_F, TOOL_G],
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "required",
                    "tools": [{"type": "function", "name": "g"}],
                },
            },
            [CHAT_G],
            "required",
        ),
    ],
)
def test_tools_are_nested_for_the_chat(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], tools: object, choice: object
):
    chats = bracketed(monkeypatch)
    _, client = scripted("x")
    parse_response(client.post(URL, {"input": "hi", **fields}))
    assert chats[0].tools == tools and chats[0].tool_choice == choice


@pytest.mark.parametrize(
    ("text", "response_format"),
    [
        ({}, None),
        ({"format": {"type": "text"}, "verbosity": "medium"}, None),
        ({"format": {"type": "json_object"}}, {"type": "json_object"}),
        (
            {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}},
            {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True}},
        ),
    ],
)
def test_a_text_format_is_a_response_format(
    monkeypatch: pytest.MonkeyPatch, text: dict[str, Any], response_format: object
):
    chats = bracketed(monkeypatch)
    _, client = scripted("x")
    parse_response(client.post(URL, {"input": "hi", "text": text, "reasoning": {"effort": "high"}}))
    assert chats[0].response_format == response_format
    assert chats[0].reasoning_effort == "high"


MESSAGE = {"role": "user", "content": "hi"}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
ALLOWED = {"type": "allowed_tools", "tools": [{"type": "function", "name": "x"}]}


@pytest.mark.parametrize(
    ("fields", "param", "part"),
    [
        ({"input": None}, "input", "at least one item"),
        ({"input": []}, "input", "at least one item"),
        ({"input": 5}, "input", "Expected"),
        ({"input": [5]}, "input[0]", "Expected"),
        ({"input": [{"content": "hi"}]}, "input[0].role", "user, assistant"),
        ({"input": [{"role": "tool", "content": "hi"}]}, "input[0].role", "user, assistant"),
        ({"input": [{"role": "user"}]}, "input[0].content", "a string or a list"),
        ({"input": [MESSAGE, {"role": "user", "content": [5]}]}, "input[1].content[0]", "an object"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text", "a string"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x"}]}]},
            "input[0].content[0].type",
            "'input_image' is not supported",
        ),
        ({"input": [{"type": "mcp_call", "id": "x"}]}, "input[0].type", "'mcp_call' is not supported"),
        ({"input": [{"type": "item_reference"}]}, "input[0].id", "a string"),
        ({"input": [{**CALL, "name": 5}]}, "input[0].name", "a string"),
        ({"input": [{**CALL, "arguments": "[]"}]}, "input[0].arguments", "JSON text of an object"),
        (
            {"input": [{"type": "function_call_output", "call_id": "c", "output": ""}]},
            "input[0].call_id",
            "No tool call found for function call output with call_id c",
        ),
        ({"input": [CALL, {"type": "function_call_output", "call_id": "c"}]}, "input[1].output", "a string or a list"),
        ({"input": [{"type": "reasoning", "summary": 5}]}, "input[0].summary", "a list"),
        ({"input": [{"type": "reasoning", "content": [{"type": "x"}]}]}, "input[0].content[0]", "reasoning_text"),
        ({"input": [{"type": "reasoning", "encrypted_content": "gAAA"}]}, "input[0].encrypted_content", "read"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "'web_search' are not supported"),
        ({"tools": [{"type": "file_search", "vector_store_ids": []}]}, "tools[0].type", "'file_search'"),
        ({"tools": [{"type": "computer_use_preview"}]}, "tools[0].type", "'computer_use_preview'"),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "a string"),
        ({"tool_choice": "sometimes"}, "tool_choice", "none, auto, required"),
        ({"tool_choice": {"type": "web_search_preview"}}, "tool_choice.type", "'web_search_preview'"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.name", "a string"),
        ({"tool_choice": {**ALLOWED, "tools": []}}, "tool_choice.tools", "at least one"),
        ({"tools": [TOOL_F], "tool_choice": ALLOWED}, "tool_choice.tools[0].name", "'x' is not among"),
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "json_schema"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema", "schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name", "string"),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "not supported"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "Invalid"),
        ({"include": ["everything"]}, "include[0]", "'everything' is not known"),
        ({"top_logprobs": 21}, "top_logprobs", "at most 20"),
        ({"top_logprobs": -1}, "top_logprobs", "at least 0"),
        ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens must be at least 1"),
        ({"max_output_tokens": 2049}, "max_output_tokens", "max_output_tokens is too large"),
        ({"max_output_tokens": 2**31}, "max_output_tokens", "max_output_tokens is too large"),
        ({"max_output_tokens": 2**63}, "max_output_tokens", "Expected"),
        ({"temperature": 3}, "temperature", "at most 2"),
        ({"top_p": 0}, "top_p", "above 0"),
        ({"min_tokens": 5, "max_output_tokens": 4}, "min_tokens", "at most 4"),
        ({"input": "x" * 2100}, "input", "maximum context length is 2048"),
        ({"metadata": {str(key): "" for key in range(17)}}, "metadata", "at most 16"),
        ({"metadata": {"k" * 65: ""}}, "metadata", "64"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k", "512"),
        ({"metadata": {"k": 5}}, "metadata[...]", "Expected"),
        ({"background": True, "store": False}, "background", "needs store"),
        ({"stream_options": {}}, "stream_options", "set stream"),
        ({"truncation": "always"}, "truncation", "Invalid"),
        ({"conversation": "conv_1"}, "conversation", "not supported"),
        ({"prompt": {"id": "p"}}, "prompt", "not supported"),
        ({"n": 2}, "n", "must be 1"),
        ({"cache_salt": ""}, "cache_salt", "not be empty"),
        ({"request_id": ""}, "request_id", "1 to 256"),
        ({"previous_response_id": "resp_x"}, "previous_response_id", "'resp_x' not found"),
        ({"instructions": "\ud800"}, None, "not valid JSON"),
    ],
)
def test_errors_name_the_field(fields: dict[str, Any], param: str | None, part: str):
    client = Client.of(FakeEngine())
    body = json.dumps({"input": "hi", **fields})
    answer = client.request("POST", URL, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert error_of(answer)["param"] == param, error_of(answer)
    assert part in error_of(answer)["message"]
    assert not client.get(f"{URL}/resp_x").is_success


@pytest.mark.parametrize(
    "fields",
    [
        {"made_up": 1},
        {"input": [{**MESSAGE, "type": None, "made_up": 1}]},
        dict.fromkeys(("tools", "tool_choice", "text", "reasoning", "include", "metadata", "store", "stop")),
        {"include": ["reasoning.encrypted_content", "web_search_call.action.sources"]},
        {"service_tier": "flex", "prompt_cache_retention": "24h", "stream_options": None},
    ],
)
def test_what_has_no_effect_is_accepted(fields: dict[str, Any]):
    _, client = scripted("x")
    assert parse_response(client.post(URL, {"input": "hi", **fields}))["status"] == "completed"


def test_unknown_models_are_not_found():
    answer = Client.of(FakeEngine()).post(URL, {"input": "hi", "model": "x"})
    assert answer.status_code == 404
    assert error_of(answer)["message"] == "The model `x` does not exist."


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_before_the_first_token_is_a_plain_one(stream: bool):
    _, client = scripted("abc", fail_after=0, error=RequestError("planted", status=503))
    answer = client.post(URL, {"input": "hi", "stream": stream})
    assert answer.status_code == 503 and error_of(answer)["message"] == "planted"


def test_an_answer_that_the_server_ends_early_has_failed():
    engine, client = scripted("abc")
    engine.aborting = True
    response = parse_response(client.post(URL, {"input": "hi"}))
    assert response["status"] == "failed" and response["error"]["code"] == "server_error"
    assert response["usage"]["output_tokens"] == 0


def test_request_id_names_the_response_once():
    _, client = scripted("x")
    body = {"input": "hi", "request_id": "resp_mine"}
    assert parse_response(client.post(URL, body))["id"] == "resp_mine"
    assert parse_response(client.get(f"{URL}/resp_mine"))["status"] == "completed"
    assert error_of(client.post(URL, body))["param"] == "request_id"


def test_a_header_does_not_name_the_response():
    _, client = scripted("x")
    answer = client.post(URL, {"input": "hi"}, headers={"x-request-id": "mine"})
    assert len(parse_response(answer)["id"]) == 37


def test_input_tokens_are_counted_without_an_answer():
    engine, client = scripted("x")
    counted = client.post(f"{URL}/input_tokens", {"input": "hi", "instructions": "be brief"}).json()
    assert not engine.calls
    whole = parse_response(client.post(URL, {"input": "hi", "instructions": "be brief"}))
    assert counted == {"object": "response.input_tokens", "input_tokens": whole["usage"]["input_tokens"]}
