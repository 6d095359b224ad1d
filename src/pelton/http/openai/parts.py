"""What a chat turn consists of: text, reasoning and tool calls, piece by piece as its text arrives."""

from typing import Protocol

import msgspec

from pelton.types import FinishReason


class Text(msgspec.Struct, frozen=True):
    """A piece of the answer."""

    text: str


class Reasoning(msgspec.Struct, frozen=True):
    """A piece of what the model thinks before it answers."""

    text: str


class ToolCallStart(msgspec.Struct, frozen=True):
    """A tool call begins: its name, whole. `index` counts the calls of a turn from 0."""

    index: int
    id: str
    name: str


class ToolCallArguments(msgspec.Struct, frozen=True):
    """A piece of the JSON text that a call's arguments are."""

    index: int
    text: str


Part = Text | Reasoning | ToolCallStart | ToolCallArguments


class TurnParser(Protocol):
    """Reads one choice's text. However the text is cut into pieces, the parts join to the same turn."""

    def push(self, text: str) -> list[Part]:
        """The parts that have become certain."""
        ...

    def finish(self) -> list[Part]:
        """What was held back, after the last text."""
        ...

    def finish_reason(self, reason: FinishReason) -> str:
        """The reason a client sees, once finished: "tool_calls" in the place of "stop" where calls were made."""
        ...


class PlainText:
    """The parser of a turn without tools and reasoning: all is text."""

    def push(self, text: str) -> list[Part]:
        return [Text(text)] if text else []

    def finish(self) -> list[Part]:
        return []

    def finish_reason(self, reason: FinishReason) -> str:
        return reason
