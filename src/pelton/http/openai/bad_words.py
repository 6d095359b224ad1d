"""bad_words: from texts to the token sequences that an output must not hold."""

import asyncio

import msgspec

from pelton.errors import RequestError
from pelton.tokenizer import Tokenizer
from pelton.types import SamplingParams

MAX_BAD_WORDS = 1024
MAX_BAD_WORD_LENGTH = 256
_INLINE_WORDS = 32  # about a millisecond of tokenizing; more go to a thread


async def with_bad_words(params: SamplingParams, words: list[str] | None, tokenizer: Tokenizer) -> SamplingParams:
    """`params` that rule out each word, at the start of a text and after a space, as the tokenizer would write it.

    Raises:
        RequestError: there are too many words, or one is empty or too long.
    """
    if not words:
        return params
    if len(words) > MAX_BAD_WORDS:
        raise RequestError(f"bad_words: at most {MAX_BAD_WORDS} words, got {len(words)}", param="bad_words")
    for position, word in enumerate(words):
        if not 0 < len(word) <= MAX_BAD_WORD_LENGTH:
            raise RequestError(
                f"bad_words[{position}] must have 1 to {MAX_BAD_WORD_LENGTH} characters", param=f"bad_words[{position}]"
            )
    ids = (
        _sequences(words, tokenizer)
        if len(words) <= _INLINE_WORDS
        else await asyncio.to_thread(_sequences, words, tokenizer)
    )
    return msgspec.structs.replace(params, bad_words_ids=ids)


def _sequences(words: list[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    spellings = [spelling for word in words for spelling in (word.lstrip(), f" {word.lstrip()}")]
    encoded = [tuple(tokenizer.encode(spelling, add_special_tokens=False)) for spelling in spellings if spelling]
    return tuple(dict.fromkeys(sequence for sequence in encoded if sequence))
