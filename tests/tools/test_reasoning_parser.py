"""Reasoning between <think> and </think>, before a parser of calls."""

import pytest

from pelton.http.openai.parts import PlainText
from pelton.http.tools.hermes import HermesReader
from pelton.http.tools.reader import CallRules
from pelton.http.tools.reasoning import ReasoningSplitter

from turns import Joined, join, read_every_way

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def splitter(*, is_open: bool = False, is_shown: bool = True) -> ReasoningSplitter:
    rules = CallRules(names=frozenset({"f"}))
    return ReasoningSplitter(HermesReader(rules), is_open=is_open, is_shown=is_shown)


CASES = {
    "none": (False, "Hello\n", "", "Hello\n"),
    "marked": (False, "<think>\nI see,\n well.\n</think>\n\nHello", "I see,\n well.", "Hello"),
    "leading space": (False, " \n<think>a</think>b", "a", "b"),
    "empty": (False, "<think>\n\n</think>\n\nHello", "", "Hello"),
    "not at the beginning": (False, "a <think>b</think>", "", "a <think>b</think>"),
    "no mark": (False, "<thinking>b", "", "<thinking>b"),
    "never closed": (False, "<think>so </th ", "so </th", ""),
    "cut in the opening mark": (False, " <thi", "", " <thi"),
    "closed twice": (False, "<think>a</think>b</think>c", "a", "b</think>c"),
    "open": (True, "I see\n</think>\n\nHello", "I see", "Hello"),
    "open, and opened again": (True, "\n<think>\nI see</think>Hello", "I see", "Hello"),
    "open, never closed": (True, "I see <b> ", "I see <b>", ""),
    "open, cut in the first mark": (True, "<thi", "<thi", ""),
    "open, closed at once": (True, "</think>Hello", "", "Hello"),
    "open, nothing": (True, "", "", ""),
    "mark in pieces": (True, "a </ </think </think>b", "a </ </think", "b"),
}


@pytest.mark.parametrize(("is_open", "text", "reasoning", "answer"), CASES.values(), ids=CASES.keys())
def test_reasoning_is_split_however_the_turn_is_cut(is_open: bool, text: str, reasoning: str, answer: str):
    assert read_every_way(lambda: splitter(is_open=is_open), text) == Joined(answer, reasoning, [], "stop")
    hidden = read_every_way(lambda: splitter(is_open=is_open, is_shown=False), text)
    assert hidden == Joined(answer, "", [], "stop")


def test_calls_follow_reasoning():
    text = f"<think>maybe <tool_call>?\n</think>\n\n{CALL}"
    joined = read_every_way(splitter, text)
    assert joined == Joined("", "maybe <tool_call>?", [("f", '{"a": 1}')], "tool_calls")


def test_reasoning_is_given_out_as_it_arrives():
    parser = ReasoningSplitter(PlainText(), is_open=True, is_shown=True)
    assert join(parser.push("I see")).reasoning == "I see"
    assert join(parser.push(" </th")).reasoning == ""
    assert join(parser.push("e ")).reasoning == " </the"
    assert join(parser.push("</think>\n")) == Joined()
    assert join(parser.push("Yes ")) == Joined("Yes ")
