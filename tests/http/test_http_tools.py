"""Tools and reasoning in chat completions, over a fake engine that writes known turns."""

import json
from dataclasses import replace
from typing import Any

import pytest

from chat_turns import (
    ARGUMENTS,
    BODY,
    ONE,
    SCHEMA,
    STYLED,
    TOOLS,
    TWO,
    URL,
    both,
    calls_of,
    merged,
    prompt_text,
    scripted,
)
from fakes import CHAT_TEMPLATE, Client, FakeEngine


def test_arguments_are_streamed_as_they_are_written():
    _, client = scripted(ONE)
    chunks = [event["choices"][0] for event in client.events(URL, BODY)]
    pieces = [chunk["delta"]["tool_calls"][0] for chunk in chunks if "tool_calls" in chunk["delta"]]
    assert pieces[0]["function"] == {"name": "get_weather", "arguments": "{"}
    assert len(pieces) > 40
    assert max(len(piece["function"]["arguments"]) for piece in pieces) <= 2
    assert chunks[-1] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "tool_calls", "stop_reason": None}


@pytest.mark.parametrize(
    ("template", "style"),
    [
        ("{# <tool_call> #}", "hermes"),
        ("{# [TOOL_CALLS] #}", "mistral"),
        ("{# <|python_tag|> #}", "llama3_json"),
        ("{# [func_name1(params_name1=params_value1 #}", "pythonic"),
        ("", "hermes"),
    ],
)
def test_the_style_comes_from_the_chat_template(template: str, style: str):
    _, client = scripted(STYLED[style])
    choice = both(client, {**BODY, "chat_template": template + CHAT_TEMPLATE})
    assert calls_of(choice) == [("get_weather", {"city": "Bern"}), ("get_time", {"city": "Rome"})]


def test_each_of_n_choices_has_its_own_calls():
    engine = FakeEngine()
    texts = {10: ONE, 11: "No call.", 12: TWO}
    engine.script = lambda prompt_ids, params: engine.ids(texts[params.seed or 0])
    client = Client.of(engine)
    body = {**BODY, "n": 3, "seed": 10}
    events = client.events(URL, body)
    whole = client.post(URL, body).json()["choices"]
    assert [choice["finish_reason"] for choice in whole] == ["tool_calls", "stop", "tool_calls"]
    for index in range(3):
        streamed = merged(events, index)
        assert streamed["finish_reason"] == whole[index]["finish_reason"]
        assert streamed["message"]["content"] == whole[index]["message"]["content"]
        assert calls_of(streamed) == calls_of(whole[index])


def test_marks_that_are_special_tokens_are_seen_and_others_are_not():
    engine = FakeEngine()
    bos = engine.tokenizer.bos_token_id
    engine.config = replace(engine.config, tool_call_parser="hermes")
    engine.script = [bos, *engine.ids(TWO), bos]
    engine.tokenizer._backend.add_special_tokens(["<tool_call>"])
    client = Client.of(engine)
    special = engine.tokenizer._backend.token_to_id("<tool_call>")
    engine.tokenizer.special_ids = engine.tokenizer.special_ids | {special}
    engine.tokenizer._pieces = type(engine.tokenizer._pieces).of(engine.tokenizer._backend)
    engine.script = [bos, *engine.ids(TWO), bos]
    assert special in engine.script
    assert len(calls_of(both(client, BODY))) == 2
    assert engine.calls[-1].params.shown_special_ids == (special,)
    assert both(client, {**BODY, "tool_choice": "none"})["message"]["content"].startswith('\n{"name"')


def test_no_tool_choice_shows_no_tools_and_reads_no_calls():
    template = "{{ tools }}" + CHAT_TEMPLATE
    engine, client = scripted(TWO)
    choice = both(client, {**BODY, "tool_choice": "none", "chat_template": template})
    assert choice == {"message": {"role": "assistant", "content": TWO}, "finish_reason": "stop"}
    assert prompt_text(engine).startswith("None<|im_start|>")
    both(client, {**BODY, "tool_choice": "auto", "chat_template": template})
    assert "get_weather" in prompt_text(engine)
    assert both(client, {"messages": BODY["messages"], "tool_choice": "none"})["finish_reason"] == "stop"


NAMED = {"type": "function", "function": {"name": "get_weather"}}


@pytest.mark.parametrize("choice", ["required", NAMED], ids=str)
def test_enforced_calls_are_all_there_is(choice: object):
    """The grammar is the engine's affair; what must be seen here is that it gets one."""
    engine, client = scripted(TWO)
    answer = both(client, {**BODY, "tool_choice": choice})
    names = ["get_weather"] if choice == NAMED else ["get_weather", "get_time"]
    assert [name for name, _ in calls_of(answer)] == names
    assert answer["finish_reason"] == ("stop" if choice == NAMED else "tool_calls")
    assert answer["message"]["content"] == ("" if choice == NAMED else None)
    grammar = engine.calls[-1].params.grammar or ""
    assert grammar.startswith("start:")
    assert [name in grammar for name in ("get_weather", "get_time")] == [True, choice == "required"]


def test_an_enforced_call_that_is_cut_before_its_name_is_no_text():
    _, client = scripted(TWO)
    choice = both(client, {**BODY, "tool_choice": "required", "max_tokens": 20})
    assert choice == {"message": {"role": "assistant", "content": ""}, "finish_reason": "length"}


def test_pythonic_models_write_enforced_calls_as_json():
    engine, client = scripted(STYLED["llama3_json"], tool_call_parser="pythonic")
    assert len(calls_of(both(client, {**BODY, "tool_choice": "required"}))) == 2
    assert '\\"parameters\\": ' in (engine.calls[-1].params.grammar or "")


def test_free_turns_have_no_grammar_and_strict_tools_bring_one():
    engine, client = scripted("a")
    both(client, BODY)
    assert engine.calls[-1].params.grammar is None
    strict = {"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}
    both(client, {**BODY, "tools": [strict]})
    assert "call: trigger" in (engine.calls[-1].params.grammar or "")


def test_a_constrained_answer_comes_after_reasoning_or_gives_way_to_calls():
    engine, client = scripted("a", reasoning_parser="qwen3")
    body = {"messages": BODY["messages"], "structured_outputs": {"regex": "[0-9]+"}}
    both(client, body)
    assert "reasoning GAP?" in (engine.calls[-1].params.grammar or "")
    engine, client = scripted("a")
    both(client, {**BODY, **body})
    assert "| @answer)" in (engine.calls[-1].params.grammar or "")
    both(client, {**BODY, **body, "tool_choice": "none"})
    assert (engine.calls[-1].params.grammar or "").startswith("start: /")


def test_a_turn_without_calls_is_text():
    _, client = scripted("No call, but <b>markup</b>. ")
    assert both(client, BODY) == {
        "message": {"role": "assistant", "content": "No call, but <b>markup</b>. "},
        "finish_reason": "stop",
    }
    _, client = scripted("")
    assert both(client, BODY) == {"message": {"role": "assistant", "content": ""}, "finish_reason": "stop"}


def test_a_call_that_is_cut_by_length():
    _, client = scripted(ONE, num_tokens_per_delta=3)
    choice = both(client, {**BODY, "max_tokens": 90})
    assert choice["finish_reason"] == "length"
    arguments = choice["message"]["tool_calls"][0]["function"]["arguments"]
    assert arguments
    assert ARGUMENTS.startswith(arguments)


def test_logprobs_and_token_ids_cover_all_tokens_of_a_call():
    engine, client = scripted(TWO)
    body = {**BODY, "logprobs": True, "top_logprobs": 1, "return_token_ids": True}
    choice = client.post(URL, body).json()["choices"][0]
    assert "".join(entry["token"] for entry in choice["logprobs"]["content"]) == TWO
    assert choice["token_ids"][:-1] == engine.script
    events = client.events(URL, body)
    chunks = [event["choices"][0] for event in events]
    entries = [entry for chunk in chunks if chunk["logprobs"] for entry in chunk["logprobs"]["content"]]
    assert entries == choice["logprobs"]["content"]
    assert [i for chunk in chunks for i in chunk.get("token_ids", ())] == choice["token_ids"]
    assert calls_of(merged(events)) == calls_of(choice)


def test_usage_is_exact_with_calls():
    _, client = scripted(TWO)
    events = client.events(URL, {**BODY, "stream_options": {"include_usage": True, "continuous_usage_stats": True}})
    assert events[-1]["usage"] == client.post(URL, BODY).json()["usage"]
    assert merged(events[:-1])["finish_reason"] == "tool_calls"


THOUGHT = "<think>\nWell, <b>.\n</think>\n\n"


@pytest.mark.parametrize("setting", ["deepseek_r1", "qwen3"])
@pytest.mark.parametrize("num_tokens", [1, 5, 1000])
def test_reasoning_is_split_from_calls(setting: str, num_tokens: int):
    _, client = scripted(THOUGHT + ONE, reasoning_parser=setting, num_tokens_per_delta=num_tokens)
    choice = both(client, BODY)
    assert choice["message"]["reasoning"] == "Well, <b>."
    assert choice["message"]["content"] == "Let me look."
    assert calls_of(choice) == [("get_weather", json.loads(ARGUMENTS))]


def test_reasoning_without_tools_and_left_out():
    _, client = scripted(THOUGHT + "Yes.", reasoning_parser="qwen3")
    body = {"messages": BODY["messages"]}
    message = {"role": "assistant", "content": "Yes.", "reasoning": "Well, <b>."}
    assert both(client, body) == {"message": message, "finish_reason": "stop"}
    del message["reasoning"]
    assert both(client, {**body, "include_reasoning": False}) == {"message": message, "finish_reason": "stop"}
    assert both(client, {**body, "max_tokens": 13}) == {
        "message": {"role": "assistant", "content": "", "reasoning": "Well,"},
        "finish_reason": "length",
    }


def test_reasoning_is_off_by_default_for_templates_that_know_none():
    _, client = scripted(THOUGHT + "Yes.")
    assert both(client, {"messages": BODY["messages"]})["message"]["content"] == THOUGHT + "Yes."
    template = "{# </think> #}" + CHAT_TEMPLATE
    choice = both(client, {"messages": BODY["messages"], "chat_template": template})
    assert choice["message"]["reasoning"] == "Well, <b>."


def test_earlier_calls_and_reasoning_reach_the_template():
    template = (
        "{% for m in messages %}{{ m.role }}:{{ m.content }}:{{ m.reasoning_content }}:"
        "{% for c in m.tool_calls or [] %}{{ c.id }}={{ c.function.name }}({{ c.function.arguments.city }}){% endfor %}"
        "{{ m.tool_call_id }};{% endfor %}{{ reasoning_effort }}"
    )
    engine, client = scripted("a")
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Bern"}'}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "reasoning": "why", "tool_calls": [call]},
        {"role": "tool", "content": "rain", "tool_call_id": "c1"},
        {"role": "assistant", "content": "wet", "reasoning_content": "so", "tool_calls": []},
    ]
    body = {**BODY, "messages": messages, "chat_template": template, "reasoning_effort": "high"}
    assert client.post(URL, body).status_code == 200
    assert prompt_text(engine) == ("user:hi::;assistant::why:c1=get_weather(Bern);tool:rain::c1;assistant:wet:so:;high")


def function(**fields: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "f", **fields}}]}


def assistant(call: object) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": call}]}


BAD_SCHEMA = {"type": "object", "properties": {"a": {"$ref": "https://example.com/a"}}}
IMPOSSIBLE = {"type": "object", "properties": {"x": False}, "required": ["x"]}
THIRD = "tools[2].function"
CALL = "messages[1].tool_calls[0]"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": []}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [*TOOLS, {"type": "function"}]}, "tools[2].function"),
        ({"tools": [*TOOLS, TOOLS[0]]}, "tools[2].function.name"),
        (function(name=""), "tools[0].function.name"),
        (function(name="a b"), "tools[0].function.name"),
        (function(name="x" * 65), "tools[0].function.name"),
        (function(name="f\n"), "tools[0].function.name"),
        (function(name=None), "tools[0].function.name"),
        (function(description=3), "tools[0].function.description"),
        (function(strict="yes"), "tools[0].function.strict"),
        (function(parameters=[]), "tools[0].function.parameters"),
        (function(parameters={"type": "string"}), "tools[0].function.parameters.type"),
        ({"tools": None, "tool_choice": "auto"}, "tool_choice"),
        ({"tools": None, "tool_choice": "required"}, "tool_choice"),
        ({"tools": None, "tool_choice": NAMED}, "tool_choice"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "get_wether"}}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "tool_choice"),
        ({"tool_choice": NAMED, "structured_outputs": {"regex": "a"}}, "tool_choice"),
        (
            {"tool_choice": "required", **function(parameters=BAD_SCHEMA)},
            "tools[0].function.parameters",
        ),
        (
            {"tool_choice": "required", "tools": [*TOOLS, *function(parameters=IMPOSSIBLE)["tools"]]},
            f"{THIRD}.parameters",
        ),
        ({"tool_choice": "required", **function(parameters=IMPOSSIBLE)}, "tools[0].function.parameters"),
        (function(parameters=BAD_SCHEMA, strict=True), "tools[0].function.parameters"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"include_reasoning": "no"}, "include_reasoning"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
        (assistant({"a": 1}), "messages[1].tool_calls"),
        (assistant(["f"]), CALL),
        (assistant([{"type": "custom"}]), f"{CALL}.type"),
        (assistant([{"id": 3}]), f"{CALL}.id"),
        (assistant([{"id": "a"}]), f"{CALL}.function"),
        (assistant([{"function": {"arguments": "{}"}}]), f"{CALL}.function.name"),
        (assistant([{"function": {"name": "f", "arguments": "{"}}]), f"{CALL}.function.arguments"),
        (assistant([{"function": {"name": "f", "arguments": "[1]"}}]), f"{CALL}.function.arguments"),
        (assistant([{"function": {"name": "f", "arguments": 5}}]), f"{CALL}.function.arguments"),
        (assistant([{"function": {"name": "f", "arguments": '{"a": "\\ud800"}'}}]), f"{CALL}.function.arguments"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": 3}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "user", "content": "x", "reasoning": 3}]}, "messages[0].reasoning"),
    ],
    ids=lambda value: str(value)[:60],
)
@pytest.mark.parametrize("stream", [False, True])
def test_wrong_fields_are_refused_by_name(fields: dict[str, Any], param: str, stream: bool):
    engine, client = scripted("a")
    response = client.post(URL, {**BODY, **fields, "stream": stream})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert engine.calls == []
    assert client.post(URL, BODY).json()["choices"][0]["message"] == {"role": "assistant", "content": "a"}


@pytest.mark.parametrize(
    "fields",
    [
        function(parameters=None, description=None, strict=None),
        function(parameters={}),
        function(parameters={"properties": {"a": {}}}, strict=True),
        {"tools": [{"function": {"name": "a-b.c_1"}}]},
        {"parallel_tool_calls": False, "functions": [], "function_call": "auto"},
        assistant([{"id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}]),
        assistant([{"function": {"name": "f", "arguments": {"a": 1}}}]),
        {**assistant(None), "tools": None},
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_clients_send_is_accepted(fields: dict[str, Any]):
    _, client = scripted("a")
    assert client.post(URL, {**BODY, **fields}).status_code == 200
