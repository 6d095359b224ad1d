"""A response as it grows: parts become items, and each change an event."""

import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Literal

from pelton.http.errors import as_request_error
from pelton.http.openai.logprobs import TextPosition, TokenNames
from pelton.http.openai.parts import Part, Reasoning, Text, ToolCallArguments, ToolCallStart
from pelton.http.openai.responses_api.events import Event, ResponseEvent, Stage, event_bytes
from pelton.http.openai.responses_api.open_items import OpenCall, OpenItem, OpenMessage, OpenReasoning
from pelton.http.openai.responses_api.shapes import IncompleteDetails, Response, ResponseError, ResponseUsage
from pelton.http.openai.responses_api.tokens import MessageLogprobs

Put = Callable[[bytes], None]

_LAST_STAGES: dict[str, Stage] = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "failed": "response.failed",
    "cancelled": "response.incomplete",  # OpenAI has no event of its own for it
}


class ResponseWriter:
    """Keeps `response` up to date, and gives its events to `put`, if there is one.

    `begin`, then `add` for each delta, then one of `finish`, `fail` and `cancel`, then `tell_end`: a client must not be
    told of the end before the response can be fetched.
    """

    def __init__(self, response: Response, names: TokenNames, put: Put | None) -> None:
        self.response = response
        self._names = names
        self._put = put
        self._num_events = 0
        self._open: OpenItem | None = None
        self._logprobs = MessageLogprobs()

    def begin(self) -> None:
        """The response exists."""
        self._tell("response.created")
        if self.response.status == "queued":
            self._tell("response.queued")

    def start(self) -> None:
        """The model is at work on it."""
        self.response.status = "in_progress"
        self._tell("response.in_progress")

    def add(self, text: str, parts: Sequence[Part], positions: Sequence[TextPosition]) -> None:
        """What a delta brought: its text, the parts that it completed, and logprobs."""
        if positions:
            self._logprobs.push(text, positions)
        for part in _merged(parts):
            match part:
                case Text(piece):
                    self._add_text(piece)
                case Reasoning(piece):
                    self._add_reasoning(piece)
                case ToolCallStart(_, call_id, name):
                    self._close_item("completed")
                    self._open = OpenCall(len(self.response.output), self._say, call_id, name)
                case ToolCallArguments(_, piece):
                    assert isinstance(self._open, OpenCall), "arguments of no call"
                    if piece:
                        self._open.add(piece)

    def finish(self, reason: str, usage: ResponseUsage) -> None:
        """The model has ended, for a reason as a chat has it."""
        response = self.response
        response.usage = usage
        is_whole = reason not in ("length", "abort")
        self._close_item("completed" if is_whole else "incomplete")
        if is_whole and not response.output:
            self._open = OpenMessage(0, self._say)
            self._close_item("completed")
        if is_whole:
            response.status = "completed"
            response.completed_at = int(time.time())
        elif reason == "length":
            response.status = "incomplete"
            response.incomplete_details = IncompleteDetails(reason="max_output_tokens")
        else:
            response.status = "failed"
            response.error = ResponseError(code="server_error", message="The server has ended the response early")

    def fail(self, error: Exception) -> None:
        """An error has ended the model's work."""
        self._close_item("incomplete")
        shown = as_request_error(error)
        code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"] = "server_error"
        if shown.status == HTTPStatus.TOO_MANY_REQUESTS:
            code = "rate_limit_exceeded"
        elif shown.status == HTTPStatus.BAD_REQUEST:
            code = "invalid_prompt"
        self.response.status = "failed"
        self.response.error = ResponseError(code=code, message=shown.message, param=shown.param)

    def cancel(self, usage: ResponseUsage) -> None:
        self._close_item("incomplete")
        self.response.usage = usage
        self.response.status = "cancelled"

    def tell_end(self) -> None:
        self._tell(_LAST_STAGES[self.response.status])

    def _add_text(self, piece: str) -> None:
        if not piece:
            return
        is_first = not isinstance(self._open, OpenMessage)
        entries = self._names.chat(self._logprobs.take(piece, is_first=is_first)).content
        if not isinstance(self._open, OpenMessage):
            self._close_item("completed")
            self._open = OpenMessage(len(self.response.output), self._say)
        self._open.add(piece, entries)

    def _add_reasoning(self, piece: str) -> None:
        if not piece:
            return
        if not isinstance(self._open, OpenReasoning):
            self._close_item("completed")
            self._open = OpenReasoning(len(self.response.output), self._say)
        self._open.add(piece)

    def _close_item(self, status: Literal["completed", "incomplete"]) -> None:
        if self._open is not None:
            self.response.output.append(self._open.close(status))
            self._open = None

    def _tell(self, stage: Stage) -> None:
        self._say(ResponseEvent(type=stage, response=self.response))

    def _say(self, event: Event) -> None:
        if self._put is not None:
            event.sequence_number = self._num_events
            self._num_events += 1
            self._put(event_bytes(event))


def _merged(parts: Sequence[Part]) -> list[Part]:
    """Neighbouring pieces of one text as one."""
    merged: list[Part] = []
    for part in parts:
        match merged[-1] if merged else None, part:
            case (Text(before), Text(piece)) | (Reasoning(before), Reasoning(piece)):
                merged[-1] = type(part)(before + piece)
            case ToolCallArguments(index, before), ToolCallArguments(_, piece):
                merged[-1] = ToolCallArguments(index, before + piece)
            case _:
                merged.append(part)
    return merged
