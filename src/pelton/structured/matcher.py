"""Matcher: where one request stands in its grammar; and the cache of the grammars that were compiled."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import fill_next_token_bitmask

from pelton.errors import RequestError
from pelton.structured.limits import PARSER_LIMITS
from pelton.structured.masks import Words
from pelton.structured.vocabulary import grammar_vocabulary
from pelton.tokenizer import Tokenizer

MAX_CACHED_GRAMMARS = 64
MAX_CACHED_CHARACTERS = 4 << 20  # of all cached grammars together

_LIMITS = LLParserLimits(**PARSER_LIMITS)


class Matcher:
    """Follows one request's output through its grammar.

    Not thread-safe, but any thread may use it. Once it has an `error` it stays so, and allows nothing but the end.
    """

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def fill(self, words: Words) -> None:
        """Write which tokens may come next (see TokenMasks); an end-of-sequence token where the output may end."""
        fill_next_token_bitmask(self._matcher, words[None])

    def consume(self, token_id: int) -> bool:
        """Move past a token of the output. False, and an error, if the grammar does not allow it."""
        return self._matcher.consume_token(token_id)

    def consume_forced(self) -> list[int]:
        """Move past all tokens that must follow now, whatever the model says, and return them."""
        token_ids = self._matcher.compute_ff_tokens()
        return token_ids if token_ids and self._matcher.consume_tokens(token_ids) else []

    @property
    def is_complete(self) -> bool:
        """Nothing but an end-of-sequence token can follow."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def error(self) -> str | None:
        """Why the grammar cannot be followed any more: a token that it does not allow, or one of PARSER_LIMITS."""
        return _on_one_line(self._matcher.get_error()) if self._matcher.is_error() else None


@dataclass(slots=True)
class _Entry:
    """A compiled grammar at its beginning, or the lock under which it is being compiled."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    start: LLMatcher | None = None


class CompiledGrammars:
    """Makes matchers. Thread-safe; keeps the grammars used last, by number and by their length together."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._vocabulary: LLTokenizer = grammar_vocabulary(tokenizer, vocab_size, eos_token_ids)
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def num_cached(self) -> int:
        return len(self._entries)

    def matcher(self, grammar: str, words: Words) -> Matcher:
        """A matcher at the beginning of a grammar. It may take a second: not for the thread that runs steps.

        Args:
            words: gets the first mask, which for some grammars takes longer than to compile them.

        Raises:
            RequestError: the grammar cannot be read, is too complex, or allows no output at all.
        """
        entry = self._entry(grammar)
        with entry.lock:
            if entry.start is None:
                entry.start = LLMatcher(self._vocabulary, grammar, log_level=0, limits=_LIMITS)
            copy = entry.start.deep_copy()
        matcher = Matcher(copy)
        matcher.fill(words)  # of the copy: what masks leave in memory is not kept with the cached grammar
        if matcher.error is not None:
            self._forget(grammar)
            raise RequestError(f"the grammar cannot be used: {matcher.error}")
        return matcher

    def _entry(self, grammar: str) -> _Entry:
        with self._lock:
            entry = self._entries.setdefault(grammar, _Entry())
            self._entries.move_to_end(grammar)
            characters = sum(map(len, self._entries))
            while self._entries and (len(self._entries) > MAX_CACHED_GRAMMARS or characters > MAX_CACHED_CHARACTERS):
                characters -= len(self._entries.popitem(last=False)[0])
            return entry

    def _forget(self, grammar: str) -> None:
        with self._lock:
            self._entries.pop(grammar, None)


def _on_one_line(text: str) -> str:
    return " ".join(text.replace("<non-verbose/>", "").split())[:500]
