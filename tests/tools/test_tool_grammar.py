"""Grammars of turns: what they let through is a call that validates, and is read as one."""

import json

import pytest
from llguidance import LLMatcher, LLTokenizer

from pelton.errors import RequestError
from pelton.http.tools.definitions import Tool, ToolUse
from pelton.http.tools.grammar import TurnGrammar, closed
from pelton.http.tools.reader import CallRules
from pelton.http.tools.styles import READERS
from pelton.http.tools.syntax import HERMES, LLAMA3, MISTRAL, MISTRAL_LIST, CallSyntax, call_syntax

from turns import read

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "n": {"type": "integer"}}, "required": ["city"]}
F = Tool("f", SCHEMA, False, "tools[0].function.parameters")
GET = Tool("get", {"type": "object", "properties": {}}, False, "tools[1].function.parameters")
REQUIRED = ToolUse(mode="required", tools=(F, GET))
F_CALL = '<tool_call>\n{"name": "f", "arguments": {"city": "x"}}\n</tool_call>'
GET_CALL = '<tool_call>\n{"name": "get", "arguments": {}}\n</tool_call>'
BYTES = LLTokenizer("byte")


class NoSpecialTokens:
    def special_id(self, text: str) -> int | None:
        return None


class WithSpecialTokens:
    """Bytes that no text here has stand for the marks."""

    def special_id(self, text: str) -> int | None:
        ids = {"[TOOL_CALLS]": 1, "[ARGS]": 2, "<tool_call>": 3, "</tool_call>": 4, "<think>": 5, "</think>": 6}
        return ids.get(text)


def grammar_of(use: ToolUse, syntax: CallSyntax = HERMES, *, tokenizer=None, **options) -> str | None:
    options = {"has_reasoning": False, "is_open": False, "answer": None, **options}
    return TurnGrammar(tokenizer or NoSpecialTokens()).of_turn(use, syntax, **options)


def accepts(grammar: str | None, text: str) -> bool:
    matcher = LLMatcher(BYTES, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    ids = list(text.encode())
    return matcher.validate_tokens(ids) == len(ids) and matcher.consume_tokens(ids) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("text", "accepted", "accepted_alone"),
    [
        (F_CALL, True, True),
        (GET_CALL, True, True),
        (f"{F_CALL}\n{GET_CALL}\n{F_CALL}", True, False),
        ("", False, False),
        (f"text {F_CALL}", False, False),
        (f"{F_CALL} text", False, False),
        (F_CALL[:-1], False, False),
        (F_CALL.replace('"x"', '"x", "n": 3'), True, True),
        (F_CALL.replace('"x"', '"x", "n": "3"'), False, False),
        (F_CALL.replace('"x"', '"x", "other": 3'), False, False),
        (F_CALL.replace('"x"', ' "x"'), False, False),
        (F_CALL.replace('{"city": "x"}', '"Zurich"'), False, False),
        (F_CALL.replace('"f"', '"g"'), False, False),
        (GET_CALL.replace("{}", '{"city": "x"}'), False, False),
    ],
)
def test_required_calls_are_calls_of_the_tools(text: str, accepted: bool, accepted_alone: bool):
    assert accepts(grammar_of(REQUIRED), text) is accepted
    alone = ToolUse(mode="required", tools=(F, GET), parallel=False)
    assert accepts(grammar_of(alone), text) is accepted_alone


@pytest.mark.parametrize(
    ("style", "syntax", "text"),
    [
        ("hermes", HERMES, f"{F_CALL}\n{GET_CALL}"),
        ("llama3_json", LLAMA3, '{"name": "f", "parameters": {"city": "x"}}; {"name": "get", "parameters": {}}'),
        ("mistral", MISTRAL, '[TOOL_CALLS]f[ARGS]{"city": "x"}[TOOL_CALLS]get[ARGS]{}'),
        (
            "mistral",
            MISTRAL_LIST,
            '[TOOL_CALLS] [{"name": "f", "arguments": {"city": "x"}}, {"name": "get", "arguments": {}}]',
        ),
    ],
)
def test_what_a_grammar_lets_through_is_what_the_parser_reads(style: str, syntax: CallSyntax, text: str):
    assert accepts(grammar_of(REQUIRED, syntax), text)
    parser = READERS[style](CallRules(names=frozenset({"f", "get"}), only_calls=True))
    assert read(parser, [text]).calls == [("f", '{"city": "x"}'), ("get", "{}")]


def test_marks_that_are_special_tokens_are_named_as_such():
    tokenizer = WithSpecialTokens()
    text = '\1f\2{"city": "x"}'
    assert accepts(grammar_of(REQUIRED, MISTRAL, tokenizer=tokenizer), text)
    assert not accepts(grammar_of(REQUIRED, MISTRAL, tokenizer=tokenizer), '[TOOL_CALLS]f[ARGS]{"city": "x"}')
    reasoned = grammar_of(REQUIRED, tokenizer=tokenizer, has_reasoning=True, is_open=True)
    assert accepts(reasoned, "well\6" + F_CALL.replace("<tool_call>", "\3").replace("</tool_call>", "\4"))


def test_reasoning_comes_before_calls_and_answers():
    opened = grammar_of(REQUIRED, has_reasoning=True, is_open=True)
    assert accepts(opened, f"so <b>\n</think>\n\n{F_CALL}")
    assert not accepts(opened, F_CALL)
    free = grammar_of(REQUIRED, has_reasoning=True)
    assert accepts(free, F_CALL)
    assert accepts(free, f"<think>\nso\n</think>\n\n{F_CALL}")
    assert not accepts(free, f"so {F_CALL}")
    answer = grammar_of(ToolUse(mode="none"), has_reasoning=True, answer="start: NUMBER\nNUMBER: /[0-9]+/")
    assert accepts(answer, "<think>so</think>\n12")
    assert accepts(answer, "12")
    assert not accepts(answer, "<think>so</think>\nten")


def test_a_free_turn_has_no_grammar_and_an_answer_s_is_kept():
    assert grammar_of(ToolUse(mode="none")) is None
    assert grammar_of(ToolUse(mode="auto", tools=(F,)), has_reasoning=True) is None
    assert grammar_of(ToolUse(mode="none"), answer="start: /a/") == "start: /a/"


def test_calls_may_stand_in_the_place_of_a_constrained_answer():
    grammar = grammar_of(ToolUse(mode="auto", tools=(F,)), answer="start: /[0-9]+/")
    assert accepts(grammar, "12")
    assert accepts(grammar, F_CALL)
    assert accepts(grammar, F_CALL.replace("city", "town"))  # auto: a schema binds strict tools only
    assert not accepts(grammar, "ten")


def test_strict_tools_are_bound_in_free_text():
    strict = Tool("f", SCHEMA, True, F.param)
    grammar = grammar_of(ToolUse(mode="auto", tools=(strict, GET)))
    assert accepts(grammar, "plain <b> text")
    assert accepts(grammar, f"Let me see.\n{F_CALL}\n{GET_CALL} done")
    assert accepts(grammar, GET_CALL.replace("{}", '{"a": 1}'))
    assert not accepts(grammar, f"Let me see. {F_CALL.replace('city', 'town')}")
    assert not accepts(grammar, "a <tool_call> in prose")
    assert grammar_of(ToolUse(mode="auto", tools=(strict,)), LLAMA3) is None


@pytest.mark.parametrize(
    ("schema", "is_closed"),
    [
        ({"type": "object", "properties": {}}, True),
        ({"type": "object", "properties": {"a": {}}, "required": ["a"]}, True),
        ({"type": "object"}, False),
        ({"type": "object", "properties": {"a": {}}, "required": ["b"]}, False),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": True}, False),
        ({"type": "object", "properties": {"a": {}}, "anyOf": [{"required": ["a"]}]}, False),
    ],
)
def test_arguments_are_those_that_a_schema_names(schema: dict[str, object], is_closed: bool):
    assert closed(schema) == ({**schema, "additionalProperties": False} if is_closed else schema)


def test_an_unsupported_schema_is_named():
    tool = Tool("f", {"type": "object", "properties": {"a": {"$ref": "https://x.y/z"}}}, False, F.param)
    with pytest.raises(RequestError) as refused:
        grammar_of(ToolUse(mode="required", tools=(tool,)))
    assert str(refused.value.param).startswith("tools[0].function.parameters")


def test_a_template_decides_on_mistral_s_syntax():
    assert call_syntax("mistral", "[TOOL_CALLS]x[ARGS]") is MISTRAL
    assert call_syntax("mistral", "[TOOL_CALLS]") is MISTRAL_LIST
    assert call_syntax("pythonic", None) is LLAMA3
    assert json.loads(HERMES.begin.removeprefix("<tool_call>\n").replace("{name}", "f") + "{}}")["name"] == "f"
