"""A streamed answer: the deltas of a job as events, of completions or of chats."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from pelton.http.openai.answers import UsageCounter
from pelton.http.openai.generation import Generation
from pelton.http.openai.logprobs import TextPosition
from pelton.http.openai.parts import Part, Reasoning, Text, ToolCallArguments, ToolCallStart
from pelton.http.openai.responses import Usage
from pelton.http.openai.run import Choice, Run
from pelton.http.openai.turns import ChatJob, TurnRun
from pelton.http.service import Service
from pelton.http.sse import EventStream, EventTemplate, Outbox, event
from pelton.types import Delta


class ChunkFormat(Protocol):
    """How completions are written as chunks."""

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


class TurnFormat(Protocol):
    """How chats are written as chunks."""

    def chunks(
        self,
        choice: Choice,
        parts: Sequence[Part],
        delta: Delta,
        positions: Sequence[TextPosition],
        reason: str | None,
        usage: Usage | None,
    ) -> list[msgspec.Struct]:
        """The chunks of any delta, see OnParts; none while its text is held back."""
        ...

    def part_chunk(self, index: int, part: Part) -> msgspec.Struct:
        """What `chunks` gives for a delta in the middle of choice `index` that holds nothing but this part."""
        ...

    def usage_chunk(self, usage: Usage) -> msgspec.Struct:
        """The chunk without choices at the end of a stream."""
        ...


def event_stream(service: Service, job: Generation, chunk_format: ChunkFormat) -> EventStream:
    """The response that runs the job while it is sent."""
    return EventStream(lambda outbox: _Stream(service, job, chunk_format, outbox))


def turn_stream(service: Service, job: ChatJob, turn_format: TurnFormat) -> EventStream:
    """The same for a chat."""
    return EventStream(lambda outbox: _TurnStream(service, job, turn_format, outbox))


class _Stream:
    def __init__(self, service: Service, job: Generation, chunk_format: ChunkFormat, outbox: Outbox) -> None:
        self._job = job
        self._format = chunk_format
        self._outbox = outbox
        self._usage = UsageCounter(job)
        self._is_plain = _is_plain(job)
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


class _TurnStream:
    def __init__(self, service: Service, job: ChatJob, turn_format: TurnFormat, outbox: Outbox) -> None:
        self._job = job.generation
        self._format = turn_format
        self._outbox = outbox
        self._usage = UsageCounter(job.generation)
        self._is_plain = _is_plain(job.generation)
        self._templates: dict[tuple[int, type[Part], int], EventTemplate] = {}
        self._run = TurnRun(service, job, self._on_parts, self._on_end)

    def close(self) -> None:
        self._run.close()

    def _on_parts(
        self, choice: Choice, parts: list[Part], delta: Delta, positions: Sequence[TextPosition], reason: str | None
    ) -> None:
        self._usage.add(choice, delta)
        if self._is_plain and choice.has_begun and reason is None:
            if not parts:
                return
            if len(parts) == 1 and not isinstance(part := parts[0], ToolCallStart):
                self._outbox.put(self._template(choice.index, part).event(part.text))
                return
        usage = self._usage.usage() if self._job.continuous_usage else None
        chunks = self._format.chunks(choice, parts, delta, positions, reason, usage)
        if chunks:
            self._outbox.put(b"".join(map(event, chunks)))

    def _template(self, index: int, part: Text | Reasoning | ToolCallArguments) -> EventTemplate:
        key = (index, type(part), part.index if isinstance(part, ToolCallArguments) else 0)
        template = self._templates.get(key)
        if template is None:
            marked = msgspec.structs.replace(part, text=EventTemplate.MARK)
            template = self._templates[key] = EventTemplate(self._format.part_chunk(index, marked))
        return template

    def _on_end(self, error: Exception | None) -> None:
        has_usage = error is None and self._job.include_usage
        self._outbox.end(error, last=event(self._format.usage_chunk(self._usage.usage())) if has_usage else b"")


def _is_plain(job: Generation) -> bool:
    """Whether chunks in the middle hold nothing but a piece of text."""
    return not (job.params.logprobs is not None or job.return_token_ids or job.continuous_usage)
