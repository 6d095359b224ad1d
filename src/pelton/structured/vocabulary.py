"""The model's vocabulary as llguidance wants it: the bytes of every token, and how forced text becomes tokens."""

from collections.abc import Sequence

from llguidance import LLTokenizer

from pelton.tokenizer import Tokenizer

_MARK = "\n"  # no vocabulary joins it with the word after it


def grammar_vocabulary(tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Sequence[int]) -> LLTokenizer:
    """What grammars are matched against.

    Args:
        vocab_size: width of the model's logits. Ids that the tokenizer lacks stand for nothing and are never allowed.
        eos_token_ids: those that may end an output. Other special tokens are no text, whatever they are spelled like: a
            grammar allows them only where it names them.
    """
    ends = [token_id for token_id in eos_token_ids if token_id < vocab_size]
    return LLTokenizer(_Vocabulary(tokenizer, vocab_size, ends), eos_token=ends)  # pyright: ignore[reportArgumentType]


class _Vocabulary:
    """The attributes that LLTokenizer reads from a Python tokenizer; it is called for the tokens of a text."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        known = min(tokenizer.vocab_size, vocab_size)
        self.tokens = [tokenizer.token_bytes(token_id) for token_id in range(known)] + [b""] * (vocab_size - known)
        self.special_token_ids = sorted({*tokenizer.special_ids, *eos_token_ids} & set(range(known)))
        self.eos_token_id = eos_token_ids[0]
        self.bos_token_id = tokenizer.bos_token_id
        self._tokenizer = tokenizer
        self._special_ids = frozenset(self.special_token_ids)
        self._puts_space = b"".join(map(tokenizer.token_bytes, _encode(tokenizer, "a"))) != b"a"
        self._longest = max(map(len, self.tokens))
        self._id_of = {
            data: token_id for token_id, data in enumerate(self.tokens) if data and token_id not in self._special_ids
        }

    def __call__(self, text: str) -> list[int]:
        """Ids whose bytes are exactly those of the text, as the model would have read it where that is possible."""
        ids = self._without_mark(_encode(self._tokenizer, _MARK + text)) if self._puts_space else None
        if ids is None:
            ids = _encode(self._tokenizer, text)
        is_exact = b"".join(map(self._tokenizer.token_bytes, ids)) == text.encode()
        return ids if is_exact and self._special_ids.isdisjoint(ids) else self._longest_matches(text.encode())

    def _without_mark(self, ids: list[int]) -> list[int] | None:
        """The ids behind those of the mark and of the space that a sentencepiece vocabulary puts before a text."""
        data = b""
        for index, token_id in enumerate(ids):
            data += self._tokenizer.token_bytes(token_id)
            if data.endswith(_MARK.encode()):
                return ids[index + 1 :]
        return None

    def _longest_matches(self, data: bytes) -> list[int]:
        """The longest token at each place: for texts that the tokenizer would read as special tokens."""
        ids: list[int] = []
        start = 0
        while start < len(data):
            sizes = range(min(self._longest, len(data) - start), 0, -1)
            size = next((size for size in sizes if data[start : start + size] in self._id_of), None)
            if size is None:  # a vocabulary without this byte: llguidance forces nothing here
                break
            ids.append(self._id_of[data[start : start + size]])
            start += size
        return ids


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)
