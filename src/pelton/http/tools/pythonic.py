"""Pythonic: the turn is [f(a=1), g(b="x")], in Llama 4 maybe between <|python_start|> and <|python_end|>."""

import ast
import json
import math
import warnings

from pelton.http.tools.json_calls import Outcome
from pelton.http.tools.reader import SPACES, Steps, TurnReader

START, END = "<|python_start|>", "<|python_end|>"
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None}

Json = dict[str, "Json"] | list["Json"] | str | int | float | bool | None


class PythonicReader(TurnReader):
    """Calls are a list at the beginning of the turn or after the mark, and only of the request's tools.

    Each argument is given out as JSON when it is complete. A value that is no literal becomes a string of its source.
    """

    marks = (START, END)

    def _turn(self) -> Steps[None]:
        yield
        yield from self._skip()
        while True:
            outcome = (yield from self._list()) if self._char == "[" else Outcome.NONE
            if outcome is Outcome.BROKEN:
                yield from self._ignore_rest()
                return
            if outcome is Outcome.CALL:
                yield
                yield from self._skip()
                if (yield from self._literal(END)):
                    self._drop_before()
            self._release_before()
            if not (yield from self._text(START)):
                return
            yield
            yield from self._skip()

    def _list(self) -> Steps[Outcome]:
        has_calls = False
        yield
        while True:
            yield from self._skip(SPACES | {","})
            if self._char == "]" and has_calls:
                self._drop()
                return Outcome.CALL
            outcome = yield from self._call()
            if outcome is not Outcome.CALL:
                return Outcome.BROKEN if has_calls else outcome
            has_calls = True
            yield

    def _call(self) -> Steps[Outcome]:
        """Read a call up to its closing parenthesis. It is certain with its first argument, or without any."""
        name = yield from self._name()
        is_call = self._char == "(" and name in self._rules.names
        if not is_call:
            return Outcome.NONE
        yield
        is_started = False
        while True:
            yield from self._skip(SPACES | {","})
            if self._char == ")":
                break
            key = yield from self._name()
            yield from self._skip()
            value: list[str] = []
            if not key or self._char != "=" or not (yield from self._value(value)):
                return Outcome.BROKEN if is_started else Outcome.NONE
            if not is_started:
                self._start_call(name)
            self._drop_before()
            self._put_arguments((", " if is_started else "{") + json.dumps(key) + ": " + to_json("".join(value)))
            is_started = True
        if not is_started:
            self._start_call(name)
        self._drop()
        self._put_arguments("}" if is_started else "{}")
        return Outcome.CALL

    def _value(self, into: list[str]) -> Steps[bool]:
        """Read behind "=" up to the comma or parenthesis that ends the argument; False if the turn ends before."""
        closing: list[str] = []
        while True:
            yield
            char = self._char
            if not char:
                return False
            if not closing and char in ",)":
                return True
            into.append(char)
            if char in "'\"":
                if not (yield from self._string(char, into)):
                    return False
            elif char in _CLOSING:
                closing.append(_CLOSING[char])
            elif closing and char == closing[-1]:
                closing.pop()

    def _string(self, quote: str, into: list[str]) -> Steps[bool]:
        is_escaped = False
        while True:
            yield
            char = self._char
            if not char:
                return False
            into.append("\\n" if char == "\n" else char)
            if char == quote and not is_escaped:
                return True
            is_escaped = char == "\\" and not is_escaped


def to_json(source: str) -> str:
    """JSON text of a Python literal; true, false and null count as literals too. Of anything else, a string of it."""
    source = source.strip()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # a model's "\d" is no matter for our log
            warnings.simplefilter("ignore", DeprecationWarning)
            value = _literal(ast.parse(source, mode="eval").body)
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()  # "\\ud800" in a string stands for no character
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return json.dumps(source, ensure_ascii=False)
    return text


def _literal(node: ast.expr) -> Json:
    """The value of a literal; ValueError if it is none that JSON has."""
    match node:
        case ast.Constant(value=None | bool() | int() | str() as value):
            return value
        case ast.Constant(value=float() as value) if math.isfinite(value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.Name(id=word) if word in _WORDS:
            return _WORDS[word]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_literal(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _literal(value) for key, value in zip(keys, values, strict=True)}
        case _:
            raise ValueError(f"not a literal: {ast.dump(node)[:50]}")


def _key(node: ast.expr | None) -> str:
    value = None if node is None else _literal(node)
    return value if isinstance(value, str) else json.dumps(value)
