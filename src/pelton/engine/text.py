"""TextStream: the text of one choice as its tokens arrive, cut at stop strings."""

import codecs
from collections.abc import Sequence

import msgspec

from pelton.tokenizer import Tokenizer
from pelton.types import SamplingParams


def hidden_ids(tokenizer: Tokenizer, params: SamplingParams) -> frozenset[int]:
    """The tokens that give no text."""
    if not params.skip_special_tokens:
        return frozenset()
    return (
        tokenizer.special_ids.difference(params.shown_special_ids)
        if params.shown_special_ids
        else tokenizer.special_ids
    )


class TextStep(msgspec.Struct, frozen=True):
    """What some tokens added: text that no later token can change or take back.

    `num_tokens` of the pushed ids were read; it is less than all of them only if a stop string ended the text.
    `stop` is that stop string.
    """

    text: str
    num_tokens: int
    stop: str | None = None


class TextStream:
    """Incremental detokenizer with stop strings. The cost of a token depends on its own text only.

    Bytes that begin a character wait for the rest of it, and text that begins a stop string waits until it is one or
    cannot be: the stream never takes anything back. However the ids are split over pushes, the pieces join to the same
    text: `tokenizer.decode(ids, continuation=True)` up to the first stop string. (`tokenizers.DecodeStream` holds back
    everything after a token that decodes to U+FFFD for good, and knows no stop strings.)

    The stop string that completes first wins, of those the longest. Up to `min_tokens` tokens none counts.
    """

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self._tokenizer = tokenizer
        self._skipped = hidden_ids(tokenizer, params)
        self._include_stop = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_partial = False  # the decoder holds bytes that begin a character
        self._stops = [_StopMatcher(stop) for stop in sorted(params.stop, key=len, reverse=True)]
        self._first_chars = frozenset(stop[0] for stop in params.stop)
        self._held = ""  # decoded text that may belong to a stop string
        self._num_tokens = 0
        self._ended = False

    def push(self, token_ids: Sequence[int], *, ended_by_token: bool = False) -> TextStep:
        """Read sampled tokens.

        `ended_by_token`: the last id ended the sequence (end-of-sequence or a stop token). It is no part of the text,
        unless the request includes stop strings in the output.
        """
        assert not self._ended, "push after the end of the text"
        texts: list[str] = []
        for index, token_id in enumerate(token_ids):
            self._num_tokens += 1
            is_end = ended_by_token and index == len(token_ids) - 1
            if token_id in self._skipped or (is_end and not self._include_stop):
                continue
            text, stop = self._feed(self._decode(token_id))
            texts.append(text)
            if stop is not None:
                self._ended = True
                return TextStep("".join(texts), index + 1, stop)
        return TextStep(texts[0] if len(texts) == 1 else "".join(texts), len(token_ids))

    def finish(self) -> str:
        """The text held back, once the last token was pushed: a partial character becomes one U+FFFD.

        Empty after a stop string.
        """
        if self._ended:
            return ""
        self._ended = True
        return self._held + self._decoder.decode(b"", final=True)

    def _decode(self, token_id: int) -> str:
        """The characters that a token completes."""
        if not self._is_partial:
            text = self._tokenizer.token_text(token_id)
            if text is not None:
                return text
        text = self._decoder.decode(self._tokenizer.token_bytes(token_id))
        self._is_partial = bool(self._decoder.getstate()[0])
        return text

    def _feed(self, text: str) -> tuple[str, str | None]:
        """Add decoded text; returns what is certain now, and the stop string that it completed."""
        if not self._held and self._first_chars.isdisjoint(text):
            return text, None
        counts = self._num_tokens > self._min_tokens
        start = len(self._held)
        self._held += text
        for index, char in enumerate(text, start=start + 1):
            # Every matcher must see every character, so the loop doesn't end at the first hit.
            hits = [matcher.stop for matcher in self._stops if matcher.advance(char)]
            if hits and counts:
                stop = hits[0]
                end = index if self._include_stop else index - len(stop)
                return self._held[:end], stop
        return self._release(), None

    def _release(self) -> str:
        """Let go of the held text but for its longest suffix that begins a stop string."""
        cut = len(self._held) - max(matcher.num_matched for matcher in self._stops)
        certain, self._held = self._held[:cut], self._held[cut:]
        return certain


class _StopMatcher:
    """How much of a stop string the text ends with (Knuth, Morris and Pratt 1977): constant work per character."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.num_matched = 0
        self._borders = _borders(stop)

    def advance(self, char: str) -> bool:
        """Read a character; True when it completes the stop string."""
        matched = self.num_matched
        while matched and self.stop[matched] != char:
            matched = self._borders[matched]
        matched += self.stop[matched] == char
        complete = matched == len(self.stop)
        # After a completion that does not count, an overlapping one may follow.
        self.num_matched = self._borders[matched] if complete else matched
        return complete


def _borders(stop: str) -> list[int]:
    """For each prefix length, the longest proper prefix of that prefix which is its suffix too."""
    borders = [0] * (len(stop) + 1)
    matched = 0
    for length in range(2, len(stop) + 1):
        while matched and stop[matched] != stop[length - 1]:
            matched = borders[matched]
        matched += stop[matched] == stop[length - 1]
        borders[length] = matched
    return borders
