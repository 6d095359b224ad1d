"""TurnReader: what the parsers of all styles of tool calls share. Characters in, parts out."""

import contextlib
import secrets
import string
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

from pelton.http.openai.parts import Part, Reasoning, Text, ToolCallArguments, ToolCallStart
from pelton.types import FinishReason

Value = TypeVar("Value")
Steps = Generator[None, None, Value]  # each `yield` moves on to the next character

SPACES = frozenset(" \t\r\n")
NAME_CHARACTERS = frozenset(string.ascii_letters + string.digits + "_.-")
_ALPHANUMERIC = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRules:
    """What a request says about calls.

    Args:
        names: its tools; styles whose calls could be mistaken for text only know calls of these.
        one_call: calls after the first one are left out.
        only_calls: a grammar lets nothing but calls through: text is left out.
        is_named: the client chose the tool itself; then a call is no reason to finish with "tool_calls".
    """

    names: frozenset[str]
    one_call: bool = False
    only_calls: bool = False
    is_named: bool = False


def openai_call_id() -> str:
    return "call_" + secrets.token_hex(12)


def mistral_call_id() -> str:
    """Nine letters and digits: Mistral's templates refuse any other id."""
    return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(9))


class TurnReader:
    """A TurnParser that reads one character at a time, so that the pieces of the text cannot matter.

    A subclass says in `_turn` what the characters mean. In it, `_char` is the character at hand, empty at the end, and
    `yield` moves on to the next. All that is read is held until it proves to be text (`_release`) or markup (`_drop`).
    White space next to a call belongs to the markup.

    A call that is cut off or wrong before its name and the beginning of its arguments are known is text, as it was
    written. After that its arguments are what there is of them.
    """

    new_id: Callable[[], str] = staticmethod(openai_call_id)
    marks: tuple[str, ...] = ()  # which may be special tokens, and must be seen all the same

    def __init__(self, rules: CallRules) -> None:
        self._rules = rules
        self._char = ""
        self._held: list[str] = []
        self._parts: list[Part] = []
        self._num_calls = 0
        self._has_text = False
        self._is_left_out = False  # the call being read
        self._text_mark: str | None = None  # what ends the text being read; None while none is
        self._steps = self._turn()
        next(self._steps)

    def push(self, text: str) -> list[Part]:
        mark = self._text_mark
        if mark is not None and not self._held and mark[0] not in text and not text[-1:].isspace():
            self._put_text(text)
        else:
            for char in text:
                self._read(char)
        return self._take()

    def finish(self) -> list[Part]:
        with contextlib.suppress(StopIteration):
            self._read("")
        return self._take()

    def finish_reason(self, reason: FinishReason) -> str:
        return "tool_calls" if self._num_calls and reason == "stop" and not self._rules.is_named else reason

    def _turn(self) -> Steps[None]:
        """Reads the whole turn; begins with a `yield`."""
        raise NotImplementedError

    def _read(self, char: str) -> None:
        self._char = char
        if char:
            self._held.append(char)
        self._steps.send(None)

    def _take(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return parts

    # What was read:

    def _drop(self) -> None:
        """It was markup."""
        self._held.clear()

    def _release(self) -> None:
        """It was text."""
        self._put_text("".join(self._held))
        self._held.clear()

    def _release_before(self) -> None:
        """It was text, but for the character at hand, which may begin something else. `_text` must follow."""
        if self._char:
            last = self._held.pop()
            self._release()
            self._held.append(last)

    def _drop_before(self) -> None:
        """It was markup, but for the character at hand."""
        del self._held[: -1 if self._char else None]

    def _put_text(self, text: str) -> None:
        if self._num_calls and not self._has_text:
            text = text.lstrip()
        if text and not self._rules.only_calls:
            self._has_text = True
            self._put(Text(text))

    def _start_call(self, name: str) -> None:
        """It was the beginning of a call."""
        self._drop()
        self._is_left_out = self._rules.one_call and self._num_calls > 0
        if not self._is_left_out:
            self._put(ToolCallStart(self._num_calls, self.new_id(), name))
            self._num_calls += 1

    def _put_arguments(self, text: str) -> None:
        """A piece of the arguments of the call that was started last."""
        if text and not self._is_left_out:
            self._put(ToolCallArguments(self._num_calls - 1, text))

    def _put(self, part: Part) -> None:
        last = self._parts[-1] if self._parts else None
        match last, part:
            case Text(before), Text(text):
                self._parts[-1] = Text(before + text)
            case Reasoning(before), Reasoning(text):
                self._parts[-1] = Reasoning(before + text)
            case ToolCallArguments(index, before), ToolCallArguments(same, text) if index == same:
                self._parts[-1] = ToolCallArguments(index, before + text)
            case _:
                self._parts.append(part)

    # Steps that all styles take:

    def _text(self, mark: str) -> Steps[bool]:
        """Read text from the character at hand on, up to and with `mark`; False if the turn ends before.

        The first character of a mark must not occur in it again.
        """
        num_matched = 0
        self._text_mark = mark
        while self._char:
            if num_matched and self._char != mark[num_matched]:
                self._release_before()
                num_matched = 0
            if self._char == mark[num_matched]:
                num_matched += 1
                if num_matched == len(mark):
                    self._text_mark = None
                    return True
            elif not self._char.isspace():
                self._release()
            yield
        if self._num_calls and "".join(self._held).isspace():
            self._drop()
        self._release()
        return False

    def _skip(self, characters: frozenset[str] = SPACES) -> Steps[None]:
        """Go on to the next character that is none of these."""
        while self._char in characters:
            yield

    def _literal(self, text: str) -> Steps[bool]:
        """Read this text, from the character at hand to the one behind it; False at the first one that differs."""
        for expected in text:
            if self._char != expected:
                return False
            yield
        return True

    def _name(self) -> Steps[str]:
        """Read a function's name, of at most 64 characters, up to the character behind it."""
        name: list[str] = []
        while self._char in NAME_CHARACTERS and len(name) < 64:
            name.append(self._char)
            yield
        return "".join(name)

    def _ignore_rest(self) -> Steps[None]:
        self._drop()
        while self._char:
            yield
            self._drop()
