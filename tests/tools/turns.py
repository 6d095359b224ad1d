"""Joins parts, and cuts texts in every way, for tests of parsers."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from pelton.http.openai.parts import Part, Reasoning, Text, ToolCallArguments, ToolCallStart, TurnParser


@dataclass
class Joined:
    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)  # (name, arguments)
    reason: str = ""
    ids: list[str] = field(default_factory=list, compare=False)


def join(parts: Iterable[Part]) -> Joined:
    joined = Joined()
    for part in parts:
        match part:
            case Text(text):
                assert text
                joined.text += text
            case Reasoning(text):
                assert text
                joined.reasoning += text
            case ToolCallStart(index, call_id, name):
                assert index == len(joined.calls)
                joined.calls.append((name, ""))
                joined.ids.append(call_id)
            case ToolCallArguments(index, text):
                assert text and index == len(joined.calls) - 1
                joined.calls[-1] = (joined.calls[-1][0], joined.calls[-1][1] + text)
    return joined


def read(parser: TurnParser, pieces: Iterable[str]) -> Joined:
    parts = [part for piece in pieces for part in parser.push(piece)]
    joined = join([*parts, *parser.finish()])
    joined.reason = parser.finish_reason("stop")
    return joined


def cuts(text: str) -> Iterator[list[str]]:
    """Whole, in single characters, in two at every position, and in pieces of three."""
    yield [text]
    yield list(text)
    for position in range(1, len(text)):
        yield [text[:position], text[position:]]
    yield [text[start : start + 3] for start in range(0, len(text), 3)]


def read_every_way(new_parser: Callable[[], TurnParser], text: str) -> Joined:
    """The turn that a text is, which must not depend on how it is cut."""
    whole = read(new_parser(), [text])
    for pieces in cuts(text):
        assert read(new_parser(), pieces) == whole, pieces
    return whole
