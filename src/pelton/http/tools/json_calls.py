"""Calls written as JSON objects: {"name": ..., "arguments": {...}}, read as they arrive."""

import json
import re
from enum import Enum
from typing import cast

from pelton.http.tools.reader import SPACES, Steps, TurnReader

_CLOSING = {"{": "}", "[": "]"}
_SCALAR = frozenset("0123456789+-.eEtrufalsn")  # numbers, true, false, null
_INSIDE = _SCALAR | SPACES | frozenset(",:")
_NAME_KEYS = frozenset({"name"})
_ARGUMENTS_KEYS = frozenset({"arguments", "parameters"})
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_OTHER_KEYS = frozenset({"id", "type", "function"})


class Outcome(Enum):
    """NONE: no call, and all that was read is still held. BROKEN: a call that was begun and went wrong."""

    NONE = 0
    CALL = 1
    BROKEN = 2


class JsonCallReader(TurnReader):
    """Reads calls as JSON objects and gives out their arguments verbatim, while they are written."""

    def _object_call(self, *, known_names: bool = False) -> Steps[Outcome]:
        """Read a call from its opening brace to its closing one.

        Name and arguments may come in either order. Once the name is complete and the arguments have begun, the call is
        certain. `known_names`: only calls of the request's tools are calls, and only with the usual keys.
        """
        name: str | None = None
        arguments: str | None = "{}"
        is_started = False
        yield
        while True:
            yield from self._skip(SPACES | {","})
            if self._char == "}":
                break
            key = yield from self._key()
            if key is None or (known_names and key not in _NAME_KEYS | _ARGUMENTS_KEYS | _OTHER_KEYS):
                return Outcome.BROKEN if is_started else Outcome.NONE
            if key in _ARGUMENTS_KEYS and self._char == "{" and name is not None and not is_started:
                self._start_call(name)
                is_started = True
                if not (yield from self._arguments()):
                    return Outcome.BROKEN
                yield
                continue
            value: list[str] = []
            if not (yield from self._any_value(value)):
                return Outcome.BROKEN if is_started else Outcome.NONE
            if key in _ARGUMENTS_KEYS and not is_started:
                arguments = _as_arguments("".join(value))
            elif key in _NAME_KEYS and not is_started:
                name = _as_name("".join(value))
                if name is None or (known_names and name not in self._rules.names):
                    return Outcome.NONE
        if not is_started:
            if name is None or arguments is None:
                return Outcome.NONE
            self._start_call(name)
            self._put_arguments(arguments)
        self._drop()
        return Outcome.CALL

    def _arguments(self) -> Steps[bool]:
        """Give out the object that begins here, up to its closing brace; False if it goes wrong before."""
        pieces: list[str] = []
        scan = self._container(pieces)
        while True:
            try:
                next(scan)
            except StopIteration as end:
                self._give(pieces)
                return cast("bool", end.value)
            self._give(pieces)
            yield

    def _give(self, pieces: list[str]) -> None:
        self._put_arguments("".join(pieces))
        pieces.clear()
        self._drop()

    def _key(self) -> Steps[str | None]:
        """Read a key and its colon, up to the first character of its value; None if there is none."""
        text: list[str] = []
        is_string = self._char == '"'
        if not is_string or not (yield from self._string(text)):
            return None
        yield
        yield from self._skip()
        if self._char != ":":
            return None
        yield
        yield from self._skip()
        return _as_name("".join(text))

    def _any_value(self, into: list[str]) -> Steps[bool]:
        """Read any JSON value up to the character behind it; False if there is none."""
        if self._char == '"' or self._char in _CLOSING:
            read = self._string(into) if self._char == '"' else self._container(into)
            if not (yield from read):
                return False
            yield
            return True
        while self._char in _SCALAR:
            into.append(self._char)
            yield
        return bool(into) and bool(self._char)

    def _container(self, into: list[str]) -> Steps[bool]:
        """Read an object or list up to its closing bracket; False at the first character that cannot be JSON."""
        open_brackets: list[str] = []
        while True:
            char = self._char
            if char == '"':
                if not (yield from self._string(into)):
                    return False
            elif char in _CLOSING:
                open_brackets.append(_CLOSING[char])
                into.append(char)
            elif open_brackets and char == open_brackets[-1]:
                into.append(char)
                open_brackets.pop()
                if not open_brackets:
                    return True
            elif char in _INSIDE:
                into.append(char)
            else:
                return False
            yield

    def _string(self, into: list[str]) -> Steps[bool]:
        """Read a string up to its closing quote. Control characters, which JSON wants escaped, are escaped."""
        into.append('"')
        is_escaped = False
        while True:
            yield
            char = self._char
            if not char:
                return False
            into.append(char if char >= " " else json.dumps(char)[1:-1])
            if char == '"' and not is_escaped:
                return True
            is_escaped = char == "\\" and not is_escaped


def _as_name(text: str) -> str | None:
    """The name that a JSON text is; None if it is anything else."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, str) and _NAME.fullmatch(value) else None


def _as_arguments(text: str) -> str | None:
    """Arguments that came before the name or are no object: null means none, a string may hold the object's text."""
    try:
        value: object = json.loads(text)
        if isinstance(value, str):
            text, value = value, json.loads(value)
        text.encode()  # "\\ud800" in a string stands for no character
    except (ValueError, RecursionError):
        return None
    if value is None:
        return "{}"
    return text if isinstance(value, dict) else None
