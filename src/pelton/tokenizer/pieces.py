"""Pieces: the exact bytes behind each vocabulary entry, for byte-level and for sentencepiece vocabularies."""

import json
import re
from collections.abc import Callable
from typing import Any

import tokenizers

SPACE_MARK = "\u2581"  # how sentencepiece spells a space
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes as printable characters: those of Latin-1 stay, the rest moves above U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_BY_CHAR = _byte_alphabet()


class Pieces:
    """Bytes of token ids, computed once per id.

    Args:
        backend: where the vocabulary entries come from.
        spell: the bytes of an ordinary entry. Added tokens stand for their own text.
        prefix_space: a decoded text begins with a space that was not in the original.
    """

    def __init__(self, backend: tokenizers.Tokenizer, spell: Callable[[str], bytes], *, prefix_space: bool) -> None:
        self.prefix_space = prefix_space
        self._backend = backend
        self._spell = spell
        self._cache = {
            token_id: token.content.encode() for token_id, token in backend.get_added_tokens_decoder().items()
        }
        self._texts: dict[int, str | None] = {}

    @classmethod
    def of(cls, backend: tokenizers.Tokenizer) -> "Pieces":
        """Tell from the decoder how entries spell bytes; raises ValueError when it is of another kind."""
        steps = _decoder_steps(backend)
        kinds = {step["type"] for step in steps}
        if "ByteLevel" in kinds:
            return cls(backend, byte_level_bytes, prefix_space=False)
        if kinds & {"ByteFallback", "Metaspace", "Replace"}:
            strips = any(step["type"] == "Strip" and step["start"] == 1 for step in steps)
            prepends = any(step["type"] == "Metaspace" and step["prepend_scheme"] != "never" for step in steps)
            return cls(backend, sentencepiece_bytes, prefix_space=strips or prepends)
        raise ValueError(
            f"unsupported tokenizer: its decoder is {sorted(kinds) or 'missing'}; "
            "supported are byte-level BPE and sentencepiece vocabularies"
        )

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes of a token, empty for an id outside the vocabulary."""
        data = self._cache.get(token_id)
        if data is None:
            piece = self._backend.id_to_token(token_id) if 0 <= token_id < 2**32 else None
            data = b"" if piece is None else self._spell(piece)
            self._cache[token_id] = data
        return data

    def text_of(self, token_id: int) -> str | None:
        """The bytes of a token as text; None where they are no whole characters."""
        try:
            return self._texts[token_id]
        except KeyError:
            try:
                text = self.bytes_of(token_id).decode()
            except UnicodeDecodeError:
                text = None
            self._texts[token_id] = text
            return text


def byte_level_bytes(piece: str) -> bytes:
    """Each character of a byte-level entry spells one byte; an entry with any other character is plain text."""
    try:
        return bytes([_BYTE_BY_CHAR[char] for char in piece])
    except KeyError:
        return piece.encode()


def sentencepiece_bytes(piece: str) -> bytes:
    """`<0xE2>` spells a byte; elsewhere the mark U+2581 spells a space."""
    if match := _BYTE_PIECE.match(piece):
        return bytes([int(match[1], 16)])
    return piece.replace(SPACE_MARK, " ").encode()


def _decoder_steps(backend: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    if backend.decoder is None:
        return []
    decoder = json.loads(backend.decoder.__getstate__())  # the library's JSON form; its fields are not exposed
    return decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
