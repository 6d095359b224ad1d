"""Chat turns over any endpoint: a generation whose text is read into parts as it arrives."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pelton.http.openai.answers import UsageCounter
from pelton.http.openai.generation import Generation
from pelton.http.openai.logprobs import TextPosition
from pelton.http.openai.parts import Part, Reasoning, Text, ToolCallArguments, ToolCallStart, TurnParser
from pelton.http.openai.responses import Usage
from pelton.http.openai.run import Choice, OnEnd, Run
from pelton.http.service import Service
from pelton.types import Delta


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatJob:
    """A chat request, checked and tokenized, and how to read the text of each of its choices."""

    generation: Generation
    new_parser: Callable[[], TurnParser]


@dataclass(slots=True)
class MadeCall:
    """A tool call that a model made; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class Turn:
    """The whole of one choice. `finish_reason` is what a client sees; `parts` are the same in their order."""

    choice: Choice
    text: str = ""
    reasoning: str = ""
    calls: list[MadeCall] = field(default_factory=list[MadeCall])
    parts: list[Part] = field(default_factory=list[Part])
    finish_reason: str | None = None
    token_ids: list[int] = field(default_factory=list[int])
    positions: list[TextPosition] = field(default_factory=list[TextPosition])

    def add(self, parts: Sequence[Part]) -> None:
        self.parts += parts
        for part in parts:
            match part:
                case Text(text):
                    self.text += text
                case Reasoning(text):
                    self.reasoning += text
                case ToolCallStart(_, call_id, name):
                    self.calls.append(MadeCall(call_id, name))
                case ToolCallArguments(index, text):
                    self.calls[index].arguments += text


# Takes the parts of a delta, the delta itself (its text is in the parts), and the reason to show with the last one.
OnParts = Callable[[Choice, list[Part], Delta, Sequence[TextPosition], str | None], None]


class TurnRun:
    """Runs a chat job; see Run. `on_parts` is called for each delta, also where it completes no part."""

    def __init__(self, service: Service, job: ChatJob, on_parts: OnParts, on_end: OnEnd) -> None:
        self._new_parser = job.new_parser
        self._parsers: dict[int, TurnParser] = {}  # by index of the choice
        self._on_parts = on_parts
        self._run = Run(service, job.generation, self._on_delta, on_end)

    def close(self) -> None:
        """Abort what still runs; must be called in the end."""
        self._run.close()

    def _on_delta(self, choice: Choice, delta: Delta, positions: Sequence[TextPosition]) -> None:
        parser = self._parsers.get(choice.index)
        if parser is None:
            parser = self._parsers[choice.index] = self._new_parser()
        parts = parser.push(delta.text) if delta.text else []
        reason = None
        if delta.finish_reason is not None:
            parts = [*parts, *parser.finish()]
            reason = parser.finish_reason(delta.finish_reason)
        self._on_parts(choice, parts, delta, positions, reason)


async def collect_turns(service: Service, job: ChatJob) -> tuple[list[Turn], Usage]:
    """Every choice when all are complete, by index. Raises as `Run`, and what it gives to `on_end`."""
    usage = UsageCounter(job.generation)
    turns: dict[int, Turn] = {}
    ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def on_parts(
        choice: Choice, parts: list[Part], delta: Delta, positions: Sequence[TextPosition], reason: str | None
    ) -> None:
        usage.add(choice, delta)
        turn = turns.get(choice.index)
        if turn is None:
            turn = turns[choice.index] = Turn(choice)
        turn.add(parts)
        turn.token_ids += delta.token_ids
        turn.positions += positions
        turn.finish_reason = reason

    def on_end(error: Exception | None) -> None:
        if not ended.done():
            ended.set_result(error)

    run = TurnRun(service, job, on_parts, on_end)
    try:
        error = await ended
    finally:
        run.close()
    if error is not None:
        raise error
    return [turns[index] for index in sorted(turns)], usage.usage()
