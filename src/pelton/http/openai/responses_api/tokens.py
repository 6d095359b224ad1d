"""Which tokens the parts of a turn are made of."""

import codecs
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

from pelton.engine.text import hidden_ids
from pelton.http.openai.logprobs import TextPosition
from pelton.http.openai.parts import Part, Reasoning
from pelton.tokenizer import Tokenizer
from pelton.types import Delta, SamplingParams


class ReasoningCounter:
    """Counts the tokens of which reasoning text is made, wholly or in part; not the marks around it.

    However tokens are spread over deltas, the count is the same: it is found by the characters of each token.
    """

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self.num_tokens = 0
        self._tokenizer = tokenizer
        self._hidden = hidden_ids(tokenizer, params)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._texts: list[str] = []  # the output so far
        self._starts: list[int] = []  # of each token that shows, in characters of the output
        self._num_characters = 0  # of those tokens
        self._reasoning: list[str] = []
        self._num_counted_characters = 0  # up to the end of the last reasoning

    def push(self, delta: Delta, parts: Sequence[Part]) -> None:
        """`parts` are what `delta` completed."""
        self._texts.append(delta.text)
        for token_id in delta.token_ids:
            if token_id not in self._hidden:
                self._starts.append(self._num_characters)
                self._num_characters += len(self._decoder.decode(self._tokenizer.token_bytes(token_id)))
        for part in parts:
            if isinstance(part, Reasoning):
                self._reasoning.append(part.text)
            else:
                self._count()
        if delta.finish_reason is not None:
            self._count()

    def _count(self) -> None:
        """Add the tokens of the reasoning that has just ended."""
        if not self._reasoning:
            return
        reasoning = "".join(self._reasoning)
        self._reasoning.clear()
        start = max(self._num_counted_characters, "".join(self._texts).find(reasoning, self._num_counted_characters))
        end = self._num_counted_characters = start + len(reasoning)
        first = bisect_left(self._starts, start)
        if first and (self._starts[first] if first < len(self._starts) else self._num_characters) > start:
            first -= 1  # a token that begins before the reasoning and ends in it
        self.num_tokens += bisect_left(self._starts, end) - first


class MessageLogprobs:
    """Entries of the tokens that a message's text is made of, while other parts stand before and behind it."""

    def __init__(self) -> None:
        self._texts: list[str] = []  # the output so far
        self._pending: deque[TextPosition] = deque()
        self._end = 0  # of the text of messages so far, in characters of the output

    def push(self, text: str, positions: Sequence[TextPosition]) -> None:
        """What a delta brought, before its parts are taken."""
        self._texts.append(text)
        self._pending += positions

    def take(self, text: str, *, is_first: bool) -> list[TextPosition]:
        """The entries of the next piece of a message; `is_first` where the message begins with it."""
        if is_first:
            start = max(self._end, "".join(self._texts).rfind(text, self._end))
            self._end = start
            while self._pending and self._pending[0].start < start and self._pending[0].end <= start:
                self._pending.popleft()
        self._end += len(text)
        taken: list[TextPosition] = []
        while self._pending and self._pending[0].start < self._end:
            taken.append(self._pending.popleft())
        return taken
