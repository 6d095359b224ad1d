"""From the parts of a turn to content blocks, streamed and whole."""

from collections.abc import Iterable
from typing import cast

import msgspec

from pelton.http.anthropic.responses import (
    SIGNATURE,
    Block,
    BlockEvent,
    ContentBlockDelta,
    ContentBlockStart,
    ContentBlockStop,
    InputJsonDelta,
    SignatureDelta,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
)
from pelton.http.openai.parts import Part, Reasoning, Text, ToolCallArguments, ToolCallStart
from pelton.types import JsonObject

_decode_json = msgspec.json.Decoder().decode


class BlockWriter:
    """Writes parts as the events of blocks, one block after the other in the order of the parts.

    A text block begins with its first character that is no white space: text of white space alone, as models write it
    between calls, is no block.

    Args:
        shows_thinking: else thinking blocks come without their text.
    """

    def __init__(self, *, shows_thinking: bool) -> None:
        self.made_calls = False
        self._shows_thinking = shows_thinking
        self._index = -1
        self._open: Block | None = None
        self._held = ""

    def add(self, part: Part) -> list[BlockEvent]:
        match part:
            case Text(text):
                return self._add_text(text)
            case Reasoning(text):
                events = [] if isinstance(self._open, ThinkingBlock) else self._begin(ThinkingBlock("", ""))
                return [*events, self._delta(ThinkingDelta(text))] if self._shows_thinking else events
            case ToolCallStart(_, call_id, name):
                self.made_calls = True
                return self._begin(ToolUseBlock(f"toolu_{call_id.removeprefix('call_')}", name, {}))
            case ToolCallArguments(_, text):
                return [self._delta(InputJsonDelta(text))]

    def finish(self) -> list[BlockEvent]:
        """The end of the last block."""
        if self._open is None:
            return []
        events: list[BlockEvent] = [ContentBlockStop(self._index)]
        if isinstance(self._open, ThinkingBlock):
            events.insert(0, self._delta(SignatureDelta(SIGNATURE)))
        self._open = None
        return events

    def _add_text(self, text: str) -> list[BlockEvent]:
        if isinstance(self._open, TextBlock):
            return [self._delta(TextDelta(text))]
        self._held += text
        if not self._held.strip():
            return []
        events = self._begin(TextBlock(""))
        text, self._held = self._held, ""
        return [*events, self._delta(TextDelta(text))]

    def _begin(self, block: Block) -> list[BlockEvent]:
        events = self.finish()
        self._index += 1
        self._open = block
        if not isinstance(block, TextBlock):
            self._held = ""
        return [*events, ContentBlockStart(self._index, block)]

    def _delta(self, delta: TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta) -> ContentBlockDelta:
        return ContentBlockDelta(self._index, delta)


def content_blocks(parts: Iterable[Part], writer: BlockWriter) -> list[Block]:
    """The blocks of a whole turn: what a client makes of the writer's events."""
    events = [event for part in parts for event in writer.add(part)] + writer.finish()
    blocks: list[Block] = []
    pieces: list[str] = []
    for event in events:
        match event:
            case ContentBlockStart(_, block):
                blocks.append(block)
                pieces = []
            case ContentBlockDelta(_, TextDelta(text) | ThinkingDelta(text) | InputJsonDelta(text)):
                pieces.append(text)
            case ContentBlockDelta():
                pass
            case ContentBlockStop():
                _fill(blocks[-1], "".join(pieces))
    return blocks


def _fill(block: Block, text: str) -> None:
    match block:
        case TextBlock():
            block.text = text
        case ThinkingBlock():
            block.thinking, block.signature = text, SIGNATURE
        case ToolUseBlock():
            block.input = _arguments(text)


def _arguments(text: str) -> JsonObject:
    """The object that a call's JSON stands for; empty for one that was cut off, which the stop reason tells."""
    try:
        value = _decode_json(text)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return cast("JsonObject", value) if isinstance(value, dict) else {}
