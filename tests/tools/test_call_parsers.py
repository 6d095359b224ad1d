"""Parsers of tool calls: complete outputs of each style, cut at every position."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pelton.http.openai.parts import ToolCallArguments, ToolCallStart
from pelton.http.tools.reader import CallRules
from pelton.http.tools.styles import READERS

from turns import Joined, join, read, read_every_way

RULES = CallRules(names=frozenset({"f", "g", "get_weather"}))
NESTED = (
    '{"a": {"b": [1, {"c": "}]</tool_call>"}], "é": "\\"quoted\\" \\\\ \\n 🧎"}, "p": "C:\\\\", '
    '"t": true, "n": null, "x": -1.5e3}'
)


def parse(style: str, text: str, rules: CallRules = RULES) -> Joined:
    return read_every_way(lambda: READERS[style](rules), text)


HERMES = {
    "text": ("hello\nworld ", "hello\nworld ", []),
    "empty": ("", "", []),
    "spaces": (" \n ", " \n ", []),
    "call": ('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', "", [("f", '{"a": 1}')]),
    "nested": (f'<tool_call>{{"name": "f", "arguments": {NESTED}}}</tool_call>', "", [("f", NESTED)]),
    "text before": ('Let me see.\n\n<tool_call>{"name":"f","arguments":{}}</tool_call>', "Let me see.", [("f", "{}")]),
    "text around": (
        'One.\n<tool_call>{"name":"f","arguments":{}}</tool_call>\nTwo.\n',
        "One.\nTwo.",
        [("f", "{}")],
    ),
    "text after": ('<tool_call>{"name":"f","arguments":{}}</tool_call>\n Two. \n', "Two.", [("f", "{}")]),
    "spaces after": ('<tool_call>{"name":"f","arguments":{}}</tool_call> \n', "", [("f", "{}")]),
    "parallel": (
        '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g", "arguments": {"b": [2]}}\n</tool_call>',
        "",
        [("f", '{"a": 1}'), ("g", '{"b": [2]}')],
    ),
    "unknown name": ('<tool_call>{"name": "h", "arguments": {}}</tool_call>', "", [("h", "{}")]),
    "arguments first": ('<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', "", [("f", '{"a": 1}')]),
    "parameters, other keys": (
        '<tool_call>{"id": 7, "name": "f", "parameters": {"a": 1}, "x": [null]}</tool_call>',
        "",
        [("f", '{"a": 1}')],
    ),
    "no arguments": ('<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
    "null arguments": ('<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [("f", "{}")]),
    "arguments as a string": (
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"\\u00e9\\"}"}</tool_call>',
        "",
        [("f", '{"a": "é"}')],
    ),
    "newline in a string": (
        '<tool_call>{"name": "f", "arguments": {"a": "x\ny\tz"}}</tool_call>',
        "",
        [("f", '{"a": "x\\ny\\tz"}')],
    ),
    "missing closing mark": ('<tool_call>{"name": "f", "arguments": {"a": 1}}', "", [("f", '{"a": 1}')]),
    "missing brace": ('<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call> b', "b", [("f", '{"a": 1}')]),
    "one brace too many": ('<tool_call>{"name": "f", "arguments": {"a": 1}}}</tool_call>', "", [("f", '{"a": 1}')]),
    "unclosed, then another": (
        '<tool_call>{"name":"f","arguments":{}}<tool_call>{"name":"g","arguments":{}}</tool_call>',
        "",
        [("f", "{}"), ("g", "{}")],
    ),
    "cut in the mark": ("a <tool_ca", "a <tool_ca", []),
    "cut in the name": ('a <tool_call>\n{"name": "ge', 'a <tool_call>\n{"name": "ge', []),
    "cut before the arguments": ('<tool_call>{"name": "f", "argu', '<tool_call>{"name": "f", "argu', []),
    "cut in the arguments": ('<tool_call>{"name": "f", "arguments": {"a": "b', "", [("f", '{"a": "b')]),
    "cut in the closing mark": ('<tool_call>{"name":"f","arguments":{}}</tool_', "", [("f", "{}")]),
    "broken arguments": (
        '<tool_call>{"name": "f", "arguments": {"a": <b>}}</tool_call>c',
        "c",
        [("f", '{"a": ')],
    ),
    "arguments that are a list": (
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        [],
    ),
    "name with a lone surrogate": (
        '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',
        [],
    ),
    "text with the mark": (
        "Use <tool_call> to call, <b>, <<tool_call",
        "Use <tool_call> to call, <b>, <<tool_call",
        [],
    ),
    "mark twice": ('<tool_call><tool_call>{"name":"f","arguments":{}}</tool_call>', "<tool_call>", [("f", "{}")]),
    "partial mark before the mark": (
        '<tool <tool_call>{"name":"f","arguments":{}}</tool_call>',
        "<tool",
        [("f", "{}")],
    ),
    "no object": ("<tool_call>f(1)</tool_call>", "<tool_call>f(1)</tool_call>", []),
}

LLAMA = {
    "text": ("hello {world} ", "hello {world} ", []),
    "call": ('{"name": "f", "parameters": {"a": 1}}', "", [("f", '{"a": 1}')]),
    "nested": (f'\n{{"name": "f", "parameters": {NESTED}}}\n', "", [("f", NESTED)]),
    "tag": ('<|python_tag|>{"name": "f", "parameters": {"a": 1}}', "", [("f", '{"a": 1}')]),
    "tag after text": ('So: <|python_tag|> {"name": "f", "parameters": {}}', "So:", [("f", "{}")]),
    "type": ('{"type": "function", "name": "f", "parameters": {}}', "", [("f", "{}")]),
    "parallel": (
        '{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}',
        "",
        [("f", '{"a": 1}'), ("g", "{}")],
    ),
    "parallel in lines": (
        '{"name": "f", "parameters": {}}\n{"name": "g", "parameters": {}}',
        "",
        [("f", "{}"), ("g", "{}")],
    ),
    "parallel with tags": (
        '<|python_tag|>{"name": "f", "parameters": {}};\n<|python_tag|>{"name": "g", "parameters": {}}',
        "",
        [("f", "{}"), ("g", "{}")],
    ),
    "text after": ('{"name": "f", "parameters": {}}\nDone.', "Done.", [("f", "{}")]),
    "JSON that is no call": ('{"city": "Bern", "n": 1}', '{"city": "Bern", "n": 1}', []),
    "unknown name": ('{"name": "Bern", "parameters": {}}', '{"name": "Bern", "parameters": {}}', []),
    "call inside text": ('See {"name": "f", "parameters": {}}', 'See {"name": "f", "parameters": {}}', []),
    "tag without call": ("<|python_tag|>print(1)", "<|python_tag|>print(1)", []),
    "cut in the name": ('{"name": "get_w', '{"name": "get_w', []),
    "cut in the arguments": ('{"name": "f", "parameters": {"a": [', "", [("f", '{"a": [')]),
    "broken arguments": ('{"name": "f", "parameters": {"a": @}} rest', "", [("f", '{"a": ')]),
}

MISTRAL = {
    "text": ("hello [world] ", "hello [world] ", []),
    "call": ('[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}]', "", [("f", '{"a": 1}')]),
    "nested": (f'[TOOL_CALLS][{{"name": "f", "arguments": {NESTED}}}]', "", [("f", NESTED)]),
    "parallel": (
        'Text. [TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}, "id": "VvvODy9mT"}]\n',
        "Text.",
        [("f", '{"a": 1}'), ("g", "{}")],
    ),
    "one object": ('[TOOL_CALLS]{"name": "f", "arguments": {}}', "", [("f", "{}")]),
    "new": ('[TOOL_CALLS]f[ARGS]{"a": 1}', "", [("f", '{"a": 1}')]),
    "new, nested": (f"[TOOL_CALLS]f[ARGS]{NESTED}", "", [("f", NESTED)]),
    "new, parallel": ('A[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}', "A", [("f", '{"a": 1}'), ("g", "{}")]),
    "new, with an id": ('[TOOL_CALLS]f[CALL_ID]VvvODy9mT[ARGS]{"a": 1}', "", [("f", '{"a": 1}')]),
    "new, without [ARGS]": ('[TOOL_CALLS]f{"a": 1}[TOOL_CALLS]g{"b": 2}', "", [("f", '{"a": 1}'), ("g", '{"b": 2}')]),
    "mark without call": ("[TOOL_CALLS] and more [TOOL_CA", "[TOOL_CALLS] and more [TOOL_CA", []),
    "empty list": ("[TOOL_CALLS][]", "[TOOL_CALLS][]", []),
    "other marks": ("[TOOL_CALLS]f[CALLS]{}", "[TOOL_CALLS]f[CALLS]{}", []),
    "cut in the name": ("[TOOL_CALLS]get_wea", "[TOOL_CALLS]get_wea", []),
    "cut in the arguments": ('[TOOL_CALLS]f[ARGS]{"a": "b', "", [("f", '{"a": "b')]),
    "cut in the list": ('[TOOL_CALLS][{"name": "f", "arguments": {}}, {"na', "", [("f", "{}")]),
    "broken list": ('[TOOL_CALLS][{"name": "f", "arguments": {}}, oops]', "", [("f", "{}")]),
}

PYTHONIC = {
    "text": ("hello [world] ", "hello [world] ", []),
    "call": ('[f(a=1, b="x, )")]', "", [("f", '{"a": 1, "b": "x, )"}')]),
    "no arguments": ("[f()]", "", [("f", "{}")]),
    "parallel": ("[f(a=1), g(b='x')]\n", "", [("f", '{"a": 1}'), ("g", '{"b": "x"}')]),
    "values": (
        """[f(a=True, b=None, c=-1.5, d=[1, {'k': (2, "]")}], e='it\\'s "é" \\n', f=false, g=null)]""",
        "",
        [
            (
                "f",
                '{"a": true, "b": null, "c": -1.5, "d": [1, {"k": [2, "]"]}], "e": "it\'s \\"é\\" \\n", "f": false, '
                '"g": null}',
            )
        ],
    ),
    "lines": ("[\n f(\n  a=[\n1,\n2],\n b='x\ny'\n )\n]", "", [("f", '{"a": [1, 2], "b": "x\\ny"}')]),
    "marks": ("So. <|python_start|>[f(a=1)]<|python_end|>", "So.", [("f", '{"a": 1}')]),
    "marks at the beginning": ("<|python_start|>[f(a=1)]<|python_end|>\n", "", [("f", '{"a": 1}')]),
    "text after": ("[f(a=1)] done", "done", [("f", '{"a": 1}')]),
    "no literal": ("[f(a=g(1, 2), b=1e999, c=x)]", "", [("f", '{"a": "g(1, 2)", "b": "1e999", "c": "x"}')]),
    "lone surrogate": ("[f(a='\\ud800')]", "", [("f", '{"a": "\'\\\\ud800\'"}')]),
    "unknown name": ("[h(a=1)]", "[h(a=1)]", []),
    "a list": ("[1, 2]", "[1, 2]", []),
    "empty list": ("[]", "[]", []),
    "inside text": ("See [f(a=1)]", "See [f(a=1)]", []),
    "positional": ("[f(1)]", "[f(1)]", []),
    "cut in the name": ("[get_w", "[get_w", []),
    "cut in the first value": ("[f(a='x", "[f(a='x", []),
    "cut in the second value": ("[f(a='x', b=[1", "", [("f", '{"a": "x"')]),
    "broken second call": ("[f(a=1), oops]", "", [("f", '{"a": 1}')]),
}

CASES = [
    pytest.param(style, text, content, calls, id=f"{style}: {name}")
    for style, table in (("hermes", HERMES), ("llama3_json", LLAMA), ("mistral", MISTRAL), ("pythonic", PYTHONIC))
    for name, (text, content, calls) in table.items()
]


@pytest.mark.parametrize(("style", "text", "content", "calls"), CASES)
def test_a_turn_is_the_same_however_it_is_cut(style: str, text: str, content: str, calls: list[tuple[str, str]]):
    assert parse(style, text) == Joined(content, "", calls, "tool_calls" if calls else "stop")


@pytest.mark.parametrize("style", READERS)
def test_text_passes_at_once(style: str):
    parser = READERS[style](RULES)
    assert join(parser.push("Hello")).text == "Hello"
    assert join(parser.push(" <b")).text == " <b"
    assert join(parser.push(" \n")).text == ""
    assert join(parser.push("c")).text == " \nc"


def test_arguments_are_given_out_as_they_arrive():
    parser = READERS["hermes"](RULES)
    assert parser.push('<tool_call>{"name": "f", "arguments": ') == []
    start, first = parser.push('{"a')
    assert isinstance(start, ToolCallStart) and start.name == "f"
    assert re.fullmatch("call_[0-9a-f]{24}", start.id)
    assert first == ToolCallArguments(0, '{"a')
    assert parser.push('": [1') == [ToolCallArguments(0, '": [1')]
    assert parser.push("]}") == [ToolCallArguments(0, "]}")]
    assert parser.push("}\n</tool_call>") == parser.finish() == []


def test_pythonic_arguments_are_given_out_one_by_one():
    parser = READERS["pythonic"](RULES)
    assert parser.push("[f(a=1") == []
    assert parser.push(",")[1] == ToolCallArguments(0, '{"a": 1')
    assert parser.push(" b='x')") == [ToolCallArguments(0, ', "b": "x"}')]


def test_mistral_ids_are_nine_letters_and_digits():
    joined = parse("mistral", HERMES["text"][0])
    joined = read(READERS["mistral"](RULES), ["[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[ARGS]{}"])
    assert all(re.fullmatch("[A-Za-z0-9]{9}", call_id) for call_id in joined.ids)
    assert len(set(joined.ids)) == 2


PARALLEL = [("hermes", HERMES), ("llama3_json", LLAMA), ("mistral", MISTRAL), ("pythonic", PYTHONIC)]


@pytest.mark.parametrize(("style", "table"), PARALLEL)
def test_one_call_leaves_out_the_others(style: str, table: dict[str, tuple[str, str, list[tuple[str, str]]]]):
    text, content, calls = table["parallel"]
    rules = CallRules(names=RULES.names, one_call=True)
    assert parse(style, text, rules) == Joined(content, "", calls[:1], "tool_calls")


def test_where_a_grammar_lets_only_calls_through_there_is_no_text():
    rules = CallRules(names=RULES.names, only_calls=True, is_named=True)
    assert parse("hermes", HERMES["text around"][0], rules) == Joined("", "", [("f", "{}")], "stop")
    assert parse("hermes", HERMES["cut in the name"][0], rules) == Joined(reason="stop")


@pytest.mark.parametrize("style", READERS)
def test_deep_nesting_and_long_turns_are_read(style: str):
    rules = CallRules(names=frozenset({"f"}))
    deep = "[" * 20_000 + "]" * 20_000
    texts = {
        "hermes": f'<tool_call>{{"arguments": {{"a": {deep}}}, "name": {deep}}}</tool_call>',
        "llama3_json": f'{{"name": "f", "parameters": {{"a": {deep}}}}}',
        "mistral": f'[TOOL_CALLS]f[ARGS]{{"a": {deep}}}',
        "pythonic": f"[f(a={deep})]",
    }
    pieces = [texts[style][start : start + 5] for start in range(0, len(texts[style]), 5)]
    joined = read(READERS[style](rules), pieces)
    assert joined.text == texts[style] if style == "hermes" else deep in joined.calls[0][1]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(st.from_regex("[a-z_]{1,5}", fullmatch=True), VALUES, max_size=4)


def written(style: str, calls: list[tuple[str, dict[str, object]]], *, ascii_only: bool) -> str:
    texts = [(name, json.dumps(arguments, ensure_ascii=ascii_only)) for name, arguments in calls]
    match style:
        case "hermes":
            return "\n".join(f'<tool_call>\n{{"name": "{n}", "arguments": {a}}}\n</tool_call>' for n, a in texts)
        case "llama3_json":
            return "; ".join(f'{{"name": "{n}", "parameters": {a}}}' for n, a in texts)
        case "mistral" if ascii_only:
            return "[TOOL_CALLS][" + ", ".join(f'{{"name": "{n}", "arguments": {a}}}' for n, a in texts) + "]"
        case "mistral":
            return "".join(f"[TOOL_CALLS]{n}[ARGS]{a}" for n, a in texts)
        case _:
            lists = (", ".join(f"{key}={value!r}" for key, value in arguments.items()) for _, arguments in calls)
            return "[" + ", ".join(f"{name}({items})" for (name, _), items in zip(calls, lists, strict=True)) + "]"


@settings(max_examples=30, deadline=None)
@given(
    style=st.sampled_from(sorted(READERS)),
    calls=st.lists(st.tuples(st.sampled_from(["f", "g", "get_weather"]), ARGUMENTS), min_size=1, max_size=3),
    ascii_only=st.booleans(),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=20),
)
def test_any_arguments_come_back(style: str, calls, ascii_only: bool, sizes: list[int]):
    text = written(style, calls, ascii_only=ascii_only)
    pieces: list[str] = []
    while text:
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(text[:size])
        text = text[size:]
    joined = read(READERS[style](RULES), pieces)
    assert joined.text == ""
    assert [(name, json.loads(arguments)) for name, arguments in joined.calls] == calls


@settings(max_examples=150, deadline=None)
@given(
    style=st.sampled_from(sorted(READERS)),
    tokens=st.lists(
        st.sampled_from(
            [
                *("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[f(", "a="),
                *(
                    '{"name": "f"',
                    '"arguments": ',
                    '"parameters": ',
                    "{",
                    "}",
                    "[",
                    "]",
                    ",",
                    ":",
                    '"',
                    "\\",
                    " ",
                    "\n",
                ),
                *("f", "(", ")", "'x'", "1", "é", "<", ";", "text", "<|python_start|>", "<|python_end|>"),
            ]
        ),
        max_size=12,
    ),
)
def test_any_sequence_of_markup_is_read_alike_in_pieces(style: str, tokens: list[str]):
    text = "".join(tokens)
    new_parser = lambda: READERS[style](RULES)  # noqa: E731
    whole = read(new_parser(), [text])
    assert read(new_parser(), list(text)) == read(new_parser(), tokens) == whole
    if not whole.calls:
        assert whole.text == text
