"""Log probabilities in the two shapes of the API, in step with the text that they belong to."""

import codecs
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from pelton.engine.text import hidden_ids
from pelton.http.openai.responses import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob
from pelton.tokenizer import Tokenizer
from pelton.types import Delta, SamplingParams, TokenLogprobs

LOWEST_LOGPROB = -9999.0  # JSON has no -inf; vLLM writes this


@dataclass(frozen=True, slots=True)
class TextPosition:
    """A token's logprobs, and where its text starts and ends in the output, in characters.

    `in_text` is False for a token whose text the output does not hold.
    """

    start: int
    end: int
    logprobs: TokenLogprobs
    in_text: bool = True


class AlignedLogprobs:
    """Holds each token's entry back until the text has got as far: a stop string must not show in logprobs either.

    Special tokens that `skip_special_tokens` hides have no entry, nor have tokens behind the end of a stopped text.
    With `keep_all` they have one, which says that they are not in the text: whoever scores an echoed prompt counts.
    """

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams, *, keep_all: bool = False) -> None:
        self._tokenizer = tokenizer
        self._keep_all = keep_all
        self._hidden = hidden_ids(tokenizer, params)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._num_token_characters = 0
        self._num_text_characters = 0
        self._pending: deque[TextPosition] = deque()

    def push(self, delta: Delta) -> list[TextPosition]:
        """The entries that may be shown together with `delta.text`."""
        for entry in delta.logprobs or ():
            if entry.token_id not in self._hidden:
                start = self._num_token_characters
                self._num_token_characters += len(self._decoder.decode(self._tokenizer.token_bytes(entry.token_id)))
                # A token that only begins a character waits for that character: it may belong to a stop string.
                end = self._num_token_characters + bool(self._decoder.getstate()[0])
                self._pending.append(TextPosition(start, end, entry))
            elif self._keep_all:
                here = self._num_token_characters
                self._pending.append(TextPosition(here, here, entry, in_text=False))
        self._num_text_characters += len(delta.text)
        if delta.finish_reason is None:
            return self._take(len(self._pending), end=self._num_text_characters)
        if delta.finish_reason == "stop":
            return self._until_stop()
        return list(self._pending)

    def _until_stop(self) -> list[TextPosition]:
        """What is left where a stop ended the text."""
        end = self._num_text_characters
        if not self._keep_all:
            return [position for position in self._pending if position.start < end]
        return [
            TextPosition(min(position.start, end), position.end, position.logprobs, in_text=False)
            if position.start >= end
            else position
            for position in self._pending
        ]

    def _take(self, at_most: int, *, end: int) -> list[TextPosition]:
        taken: list[TextPosition] = []
        while len(taken) < at_most and self._pending[0].end <= end:
            taken.append(self._pending.popleft())
        return taken


class TokenNames:
    """How tokens are written in answers: their text, their bytes where these are no text, or "token_id:N"."""

    def __init__(self, tokenizer: Tokenizer, *, as_ids: bool) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids

    def name(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self._as_ids else self.text(token_id)

    def hidden(self, token_id: int) -> str:
        """The name of a token whose text is not shown: nothing, so that the names join to the text."""
        return f"token_id:{token_id}" if self._as_ids else ""

    def text(self, token_id: int) -> str:
        """The token's text, or its bytes."""
        data = self._tokenizer.token_bytes(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:  # part of a character, written as OpenAI does
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def completion(self, positions: Iterable[TextPosition], offset: int) -> CompletionLogprobs:
        """The completions shape; `offset` characters of prompt stand before the output."""
        shape = CompletionLogprobs([], [], [], [])
        for position in positions:
            entry = position.logprobs
            name = self.name if position.in_text else self.hidden
            shape.tokens.append(name(entry.token_id))
            shape.token_logprobs.append(written(entry.logprob))
            shape.top_logprobs.append(top_by_name(self, entry, len(entry.top)))
            shape.text_offset.append(offset + position.start)
        return shape

    def chat(self, positions: Iterable[TextPosition]) -> ChatLogprobs:
        return ChatLogprobs([self._chat_entry(position.logprobs) for position in positions])

    def _chat_entry(self, entry: TokenLogprobs) -> TokenLogprob:
        top = [
            TopLogprob(self.name(token_id), written(logprob), self._bytes(token_id)) for token_id, logprob in entry.top
        ]
        return TokenLogprob(self.name(entry.token_id), written(entry.logprob), self._bytes(entry.token_id), top)

    def _bytes(self, token_id: int) -> list[int]:
        return list(self._tokenizer.token_bytes(token_id))


def top_by_name(names: TokenNames, entry: TokenLogprobs, count: int) -> dict[str, float]:
    """The `count` most likely tokens and the one at hand. Two may share a text: the less likely goes by its id."""
    named: dict[str, float] = {}
    top = entry.top[:count]
    listed = {token_id for token_id, _ in top}
    for token_id, logprob in (*top, *(() if entry.token_id in listed else ((entry.token_id, entry.logprob),))):
        name = names.name(token_id)
        named[f"token_id:{token_id}" if name in named else name] = written(logprob)
    return named


def written(logprob: float) -> float:
    """As JSON can hold it."""
    return max(logprob, LOWEST_LOGPROB)
