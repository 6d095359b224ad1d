"""The events of a streamed response. `sequence_number` counts a response's events from 0, over all streams of it."""

from typing import Literal

import msgspec

from pelton.http.openai.responses import TokenLogprob
from pelton.http.openai.responses_api.shapes import OutputItem, OutputText, ReasoningText, Response

_encode = msgspec.json.Encoder().encode

Stage = Literal[
    "response.created",
    "response.queued",
    "response.in_progress",
    "response.completed",
    "response.incomplete",
    "response.failed",
]


PartStage = Literal["response.content_part.added", "response.content_part.done"]


class ResponseEvent(msgspec.Struct, kw_only=True):
    """The response begins, moves on or ends."""

    type: Stage
    response: Response
    sequence_number: int = 0


class ItemEvent(msgspec.Struct, kw_only=True):
    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: OutputItem
    sequence_number: int = 0


class ContentPartEvent(msgspec.Struct, kw_only=True):
    type: PartStage
    item_id: str
    output_index: int
    content_index: int = 0
    part: OutputText | ReasoningText
    sequence_number: int = 0


class TextDelta(msgspec.Struct, kw_only=True):
    type: Literal["response.output_text.delta"] = "response.output_text.delta"
    item_id: str
    output_index: int
    content_index: int = 0
    delta: str
    logprobs: list[TokenLogprob]
    sequence_number: int = 0


class TextDone(msgspec.Struct, kw_only=True):
    type: Literal["response.output_text.done"] = "response.output_text.done"
    item_id: str
    output_index: int
    content_index: int = 0
    text: str
    logprobs: list[TokenLogprob]
    sequence_number: int = 0


class ReasoningDelta(msgspec.Struct, kw_only=True):
    type: Literal["response.reasoning_text.delta"] = "response.reasoning_text.delta"
    item_id: str
    output_index: int
    content_index: int = 0
    delta: str
    sequence_number: int = 0


class ReasoningDone(msgspec.Struct, kw_only=True):
    type: Literal["response.reasoning_text.done"] = "response.reasoning_text.done"
    item_id: str
    output_index: int
    content_index: int = 0
    text: str
    sequence_number: int = 0


class ArgumentsDelta(msgspec.Struct, kw_only=True):
    type: Literal["response.function_call_arguments.delta"] = "response.function_call_arguments.delta"
    item_id: str
    output_index: int
    delta: str
    sequence_number: int = 0


class ArgumentsDone(msgspec.Struct, kw_only=True):
    type: Literal["response.function_call_arguments.done"] = "response.function_call_arguments.done"
    item_id: str
    output_index: int
    name: str
    arguments: str
    sequence_number: int = 0


ItemPartEvent = TextDelta | TextDone | ReasoningDelta | ReasoningDone | ArgumentsDelta | ArgumentsDone
Event = ResponseEvent | ItemEvent | ContentPartEvent | ItemPartEvent


def event_bytes(event: Event) -> bytes:
    """As a server-sent event that is named by its type. JSON has no bare newline, so a single data line holds it."""
    return b"event: " + event.type.encode() + b"\ndata: " + _encode(event) + b"\n\n"
