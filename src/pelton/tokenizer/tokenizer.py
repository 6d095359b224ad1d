"""Tokenizer: text to token ids and back, from a Hugging Face directory or from the metadata of a GGUF file."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from pelton.errors import RequestError
from pelton.tokenizer.chat_template import ChatTemplates, Message
from pelton.tokenizer.directory import load_backend, load_special_tokens
from pelton.tokenizer.gguf import GgufVocabulary, build_backend, gguf_chat_templates
from pelton.tokenizer.pieces import Pieces
from pelton.tokenizer.special import SpecialTokens


class Tokenizer:
    """A vocabulary with its rules.

    Decoding joins the bytes of the tokens and reads them as UTF-8: each maximal invalid part becomes one U+FFFD. Where
    the bytes are valid this is what the `tokenizers` library gives; where they are not, that library's rule for
    byte-fallback vocabularies depends on the tokens that follow and cannot be streamed.
    """

    def __init__(self, backend: tokenizers.Tokenizer, special: SpecialTokens) -> None:
        backend.no_truncation()  # a tokenizer.json may carry both from training
        backend.no_padding()
        named = [token for token in (special.bos_token, special.eos_token) if token is not None]
        _add_missing_special_tokens(backend, named)
        added = backend.get_added_tokens_decoder()
        self._backend = backend
        self._pieces = Pieces.of(backend)
        self._named_templates = dict(special.chat_templates)
        self._chat_templates = ChatTemplates()
        self.bos_token = special.bos_token
        self.eos_token = special.eos_token
        self.bos_token_id = None if special.bos_token is None else backend.token_to_id(special.bos_token)
        self.eos_token_ids = special.eos_token_ids
        self.special_ids = frozenset(
            token_id for token_id, token in added.items() if token.special or token.content in named
        )
        self._adds_bos = backend.encode("").ids[:1] == [self.bos_token_id]
        self.vocab_size = backend.get_vocab_size(with_added_tokens=True)

    @classmethod
    def from_directory(cls, path: Path) -> "Tokenizer":
        """Read tokenizer.json and the small files beside it.

        The post-processor of tokenizer.json decides which special tokens `encode` adds.

        Raises:
            ValueError: tokenizer.json is missing, unreadable, or of a kind that no text generator uses.
        """
        backend = load_backend(path)
        return cls(backend, load_special_tokens(path, backend))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> "Tokenizer":
        """Build from the tokenizer.* keys of a GGUF file.

        Raises:
            ValueError: a key is missing, or the kind of vocabulary or its pre-tokenizer is not supported.
        """
        vocabulary = GgufVocabulary.from_metadata(metadata)
        special = SpecialTokens(
            bos_token=vocabulary.bos_token,
            eos_token=vocabulary.eos_token,
            eos_token_ids=vocabulary.eos_token_ids,
            chat_templates=gguf_chat_templates(metadata),
        )
        return cls(build_backend(vocabulary), special)

    @property
    def chat_template(self) -> str | None:
        """The model's own default template (Jinja source)."""
        return self._named_templates.get("default")

    def own_chat_template(self, *, with_tools: bool) -> str | None:
        """The model's own template (Jinja source). One that is named "tool_use" serves chats with tools."""
        return self._named_templates.get("tool_use" if with_tools else "default") or self.chat_template

    def special_id(self, text: str) -> int | None:
        """The id of a special token; None if there is none of this text."""
        token_id = self._backend.token_to_id(text)
        return token_id if token_id in self.special_ids else None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. Special tokens spelled in the text become those tokens.

        `add_special_tokens` adds what the model wants around a prompt, usually BOS. A text that already begins with
        BOS does not get a second one.

        Raises:
            RequestError: the text has a lone surrogate, which is no Unicode text.
        """
        try:
            # A quarter faster than `encode`, which notes where in the text each token stands.
            ids = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        except TypeError as error:
            raise _unicode_error(text, error) from error
        return self._without_second_bos(ids) if add_special_tokens and self._adds_bos else ids

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True, continuation: bool = False) -> str:
        """Text of token ids; ids outside the vocabulary stand for nothing.

        sentencepiece vocabularies put a space before the first word; it is dropped here unless the ids are a
        `continuation` of earlier ones.
        """
        skipped = self.special_ids if skip_special_tokens else frozenset[int]()
        data = b"".join([self.token_bytes(token_id) for token_id in ids if token_id not in skipped])
        if self._pieces.prefix_space and not continuation:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes that a token stands for: maybe part of a character; for special tokens their text."""
        return self._pieces.bytes_of(token_id)

    def token_text(self, token_id: int) -> str | None:
        """The same as text; None for a token that is no whole number of characters."""
        return self._pieces.text_of(token_id)

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text of a chat (see ChatTemplates.render); encode it with add_special_tokens=False.

        `chat_template` replaces the model's own (own_chat_template).

        Raises:
            RequestError: the model has no template and none is given, or the template refuses the messages.
        """
        template = chat_template or self.own_chat_template(with_tools=bool(tools))
        if template is None:
            raise RequestError(
                "this model has no chat template; send one as chat_template, or use completions", param="messages"
            )
        named = {"bos_token": self.bos_token, "eos_token": self.eos_token}
        return self._chat_templates.render(
            template,
            messages,
            tools=tools,
            documents=documents,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            special_tokens={name: token for name, token in named.items() if token is not None},
            template_kwargs=template_kwargs,
        )

    def replace_chat_template(self, chat_template: str) -> None:
        """Use this template instead of the model's own; RequestError, a ValueError, when it cannot be one."""
        self.check_chat_template(chat_template)
        self._named_templates = {"default": chat_template}

    def check_chat_template(self, chat_template: str) -> None:
        """Raises RequestError, which is a ValueError, when a template is too long or has a syntax error."""
        self._chat_templates.check(chat_template)

    def _without_second_bos(self, ids: list[int]) -> list[int]:
        twice = len(ids) > 1 and ids[0] == ids[1] == self.bos_token_id
        return ids[1:] if twice else ids


def _add_missing_special_tokens(backend: tokenizers.Tokenizer, tokens: Iterable[str]) -> None:
    """Make bos and eos parse as special tokens where the vocabulary lists them as ordinary ones."""
    added = {token.content for token in backend.get_added_tokens_decoder().values()}
    for token in tokens:
        if token in added:
            continue
        if backend.token_to_id(token) is None:
            raise ValueError(f"the tokenizer's configuration names {token!r}, which its vocabulary lacks")
        added_token = AddedToken(token, special=True, normalized=False)
        backend.add_special_tokens([added_token])  # pyright: ignore[reportUnknownMemberType] (untyped list)


def _unicode_error(text: str, error: TypeError) -> Exception:
    """What to raise after the library refused a string: lone surrogates are the one reason a client can cause."""
    for index, char in enumerate(text):
        if "\ud800" <= char <= "\udfff":
            return RequestError(
                f"the text has a lone surrogate (U+{ord(char):04X}) at character {index}; send valid Unicode"
            )
    return error
