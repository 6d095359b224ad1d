"""A streamed answer: the deltas of a job as events, of either endpoint."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from pelton.http.openai.generation import Choice, Generation, Run, UsageCounter
from pelton.http.openai.logprobs import TextPosition
from pelton.http.openai.responses import Usage
from pelton.http.service import Service
from pelton.http.sse import EventStream, EventTemplate, Outbox, event
from pelton.types import Delta


class ChunkFormat(Protocol):
    """How one endpoint writes chunks."""

    def chunks(
        self, choice: Choice, delta: Delta, positions: Sequence[TextPosition], usage: Usage | None
    ) -> list[msgspec.Struct]:
        """The chunks of any delta; none while its text is held back."""
        ...

    def text_chunk(self, index: int, text: str) -> msgspec.Struct:
        """What `chunks` gives for a delta in the middle of choice `index` that holds nothing but text."""
        ...

    def usage_chunk(self, usage: Usage) -> msgspec.Struct:
        """The chunk without choices at the end of a stream."""
        ...


def event_stream(service: Service, job: Generation, chunk_format: ChunkFormat) -> EventStream:
    """The response that runs the job while it is sent."""
    return EventStream(lambda outbox: _Stream(service, job, chunk_format, outbox))


class _Stream:
    def __init__(self, service: Service, job: Generation, chunk_format: ChunkFormat, outbox: Outbox) -> None:
        self._job = job
        self._format = chunk_format
        self._outbox = outbox
        self._usage = UsageCounter(job)
        self._is_plain = not (job.params.logprobs is not None or job.return_token_ids or job.continuous_usage)
        self._templates: dict[int, EventTemplate] = {}  # by index of the choice
        self._run = Run(service, job, self._on_delta, self._on_end)

    def close(self) -> None:
        self._run.close()

    def _on_delta(self, choice: Choice, delta: Delta, positions: Sequence[TextPosition]) -> None:
        self._usage.add(choice, delta)
        if self._is_plain and choice.has_begun and delta.finish_reason is None:
            if delta.text:
                self._outbox.put(self._template(choice.index).event(delta.text))
            return
        usage = self._usage.usage() if self._job.continuous_usage else None
        chunks = self._format.chunks(choice, delta, positions, usage)
        if chunks:
            self._outbox.put(b"".join(map(event, chunks)))

    def _template(self, index: int) -> EventTemplate:
        template = self._templates.get(index)
        if template is None:
            template = self._templates[index] = EventTemplate(self._format.text_chunk(index, EventTemplate.MARK))
        return template

    def _on_end(self, error: Exception | None) -> None:
        has_usage = error is None and self._job.include_usage
        self._outbox.end(error, last=event(self._format.usage_chunk(self._usage.usage())) if has_usage else b"")
