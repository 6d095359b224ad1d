"""The messages of a chat, and one exchange of it with its timing."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pelton.cli.answers import ChatMessage, ChatModel, TokenCounts
from pelton.cli.sampling import SamplingSettings


@dataclass(frozen=True, slots=True)
class Statistics:
    """Size and speed of one answer. Times are seconds from the question."""

    counts: TokenCounts
    first_text: float
    total: float

    @property
    def tokens_per_second(self) -> float:
        """Output tokens after the first over the time after it."""
        return max(self.counts.output - 1, 0) / max(self.total - self.first_text, 1e-9)

    def __str__(self) -> str:
        counts = self.counts
        return (
            f"{counts.prompt} tokens in ({counts.cached} cached), {counts.output} out; first text after "
            f"{1000 * self.first_text:.0f} ms, then {self.tokens_per_second:.1f} tokens/s"
        )


class StopWatch:
    """Passes text on and notes when the first came."""

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self.text = ""
        self._on_text = on_text
        self._started = time.perf_counter()
        self._first: float | None = None

    def on_text(self, text: str) -> None:
        if self._first is None:
            self._first = time.perf_counter()
        self.text += text
        self._on_text(text)

    def statistics(self, counts: TokenCounts) -> Statistics:
        now = time.perf_counter()
        return Statistics(counts, (self._first or now) - self._started, now - self._started)


class Conversation:
    """Alternating user and assistant messages after an optional system message."""

    def __init__(self, system: str | None = None) -> None:
        self._system = system
        self._exchanges: list[ChatMessage] = []

    @property
    def messages(self) -> Sequence[ChatMessage]:
        system = [] if self._system is None else [{"role": "system", "content": self._system}]
        return [*system, *self._exchanges]

    def set_system(self, text: str | None) -> None:
        """Starts over: what was said followed another instruction."""
        self._system = text
        self.reset()

    def reset(self) -> None:
        self._exchanges.clear()

    async def ask(
        self, text: str, model: ChatModel, settings: SamplingSettings, on_text: Callable[[str], None]
    ) -> Statistics:
        """Stream the answer to `text`.

        A cancelled answer stays in the conversation as far as it came. After an error, and when no text came, the
        question is forgotten with it.

        Raises:
            RequestError: the model cannot answer, for example because the context is full.
        """
        question = {"role": "user", "content": text}
        watch = StopWatch(on_text)
        try:
            counts = await model.answer([*self.messages, question], settings, watch.on_text)
        except asyncio.CancelledError:
            self._remember(question, watch.text)
            raise
        self._remember(question, watch.text)
        return watch.statistics(counts)

    def _remember(self, question: ChatMessage, answer: str) -> None:
        if answer:
            self._exchanges += [question, {"role": "assistant", "content": answer}]
