"""A streamed message: the parts of a turn as named events."""

from collections.abc import Sequence

import msgspec

from pelton.http.anthropic.answer import begun_message, message_delta
from pelton.http.anthropic.blocks import BlockWriter
from pelton.http.anthropic.errors import anthropic_error_body
from pelton.http.anthropic.responses import MessageStart, MessageStop, Ping
from pelton.http.openai.answers import UsageCounter
from pelton.http.openai.logprobs import TextPosition
from pelton.http.openai.parts import Part
from pelton.http.openai.run import Choice
from pelton.http.openai.turns import ChatJob, TurnRun
from pelton.http.service import Service
from pelton.http.sse import EventStream, Outbox, event
from pelton.types import Delta


def message_stream(service: Service, job: ChatJob, writer: BlockWriter) -> EventStream:
    """The response that runs the job while it is sent."""
    return EventStream(lambda outbox: _Stream(service, job, writer, outbox), _ending)


def _ending(error: Exception | None) -> bytes:
    """The error, if one ended the stream, as its last event; message_stop has been sent otherwise."""
    return b"" if error is None else b"event: error\ndata: " + anthropic_error_body(error) + b"\n\n"


class _Stream:
    def __init__(self, service: Service, job: ChatJob, writer: BlockWriter, outbox: Outbox) -> None:
        self._job = job.generation
        self._writer = writer
        self._outbox = outbox
        self._usage = UsageCounter(job.generation)
        self._run = TurnRun(service, job, self._on_parts, self._on_end)

    def close(self) -> None:
        self._run.close()

    def _on_parts(
        self, choice: Choice, parts: list[Part], delta: Delta, positions: Sequence[TextPosition], reason: str | None
    ) -> None:
        del positions
        self._usage.add(choice, delta)
        events: list[msgspec.Struct] = []
        if not choice.has_begun:
            events += (MessageStart(begun_message(self._job, delta.num_cached_tokens)), Ping())
        for part in parts:
            events += self._writer.add(part)
        if reason is not None:
            events += self._writer.finish()
            end = message_delta(self._usage.usage(), choice.stop_reason, reason, made_calls=self._writer.made_calls)
            events += (end, MessageStop())
        if events:
            self._outbox.put(b"".join(map(_named_event, events)))

    def _on_end(self, error: Exception | None) -> None:
        self._outbox.end(error)


def _named_event(value: msgspec.Struct) -> bytes:
    return f"event: {value.__struct_config__.tag}\n".encode() + event(value)
