"""Answers and events of the Messages API. The tag of a struct is its `type`."""

from typing import Literal

import msgspec

from pelton.types import JsonObject

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]

SIGNATURE = "unsigned"
"""What stands where Anthropic's own service signs a thinking block: clients want one to send the block back."""


class TextBlock(msgspec.Struct, tag="text"):
    text: str


class ThinkingBlock(msgspec.Struct, tag="thinking"):
    thinking: str
    signature: str


class ToolUseBlock(msgspec.Struct, tag="tool_use"):
    id: str
    name: str
    input: JsonObject


Block = TextBlock | ThinkingBlock | ToolUseBlock


class MessageUsage(msgspec.Struct, kw_only=True):
    """The prompt's length is the sum of the three counts of input tokens."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int


class Message(msgspec.Struct, tag="message", kw_only=True):
    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[Block]
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: MessageUsage


class TokenCount(msgspec.Struct):
    input_tokens: int


class MessageStart(msgspec.Struct, tag="message_start"):
    message: Message


class Ping(msgspec.Struct, tag="ping"):
    pass


class ContentBlockStart(msgspec.Struct, tag="content_block_start"):
    index: int
    content_block: Block


class TextDelta(msgspec.Struct, tag="text_delta"):
    text: str


class ThinkingDelta(msgspec.Struct, tag="thinking_delta"):
    thinking: str


class SignatureDelta(msgspec.Struct, tag="signature_delta"):
    signature: str


class InputJsonDelta(msgspec.Struct, tag="input_json_delta"):
    partial_json: str


class ContentBlockDelta(msgspec.Struct, tag="content_block_delta"):
    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class ContentBlockStop(msgspec.Struct, tag="content_block_stop"):
    index: int


BlockEvent = ContentBlockStart | ContentBlockDelta | ContentBlockStop


class StopDelta(msgspec.Struct):
    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, tag="message_delta"):
    delta: StopDelta
    usage: MessageUsage


class MessageStop(msgspec.Struct, tag="message_stop"):
    pass


StreamEvent = MessageStart | Ping | BlockEvent | MessageDelta | MessageStop
