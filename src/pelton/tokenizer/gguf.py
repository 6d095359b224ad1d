"""Tokenizers out of GGUF metadata: byte-level BPE with named pre-tokenizers, and sentencepiece BPE with scores."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from pelton.tokenizer.pieces import SPACE_MARK

# tokenizer.ggml.token_type
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4

# Where a file does not name its end-of-turn token, these control tokens are it: whichever the model emits, its text
# is over. (llama.cpp keeps a longer list of the same kind.)
_END_OF_TURN = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>")
_END_OF_MESSAGE = ("<|eom_id|>",)

_TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _TAIL
_QWEN2 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _TAIL
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _TAIL
)
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _TAIL
)
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    + _TAIL,
)
_DEFAULT = (r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")


@dataclass(frozen=True, slots=True)
class _PreTokenizer:
    """How a family cuts text into words before the merges.

    Each split isolates the matches of a pattern within the pieces of the one before. `ignore_merges` takes a word that
    is in the vocabulary as a whole. `add_bos` is the family's default where a file does not say.
    """

    splits: tuple[str, ...]
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False


_LLAMA3_FAMILY = _PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)
_DIGITS_GPT2 = _PreTokenizer((r"\p{N}", _GPT2))

# Patterns are those of each family's tokenizer.json, compared with llama.cpp's src/llama-vocab.cpp.
PRE_TOKENIZERS: Mapping[str, _PreTokenizer] = {
    "default": _PreTokenizer(_DEFAULT),
    "gpt-2": _PreTokenizer((_GPT2,)),
    "phi-2": _PreTokenizer((_GPT2,)),
    "smollm": _DIGITS_GPT2,
    "starcoder": _DIGITS_GPT2,
    "refact": _DIGITS_GPT2,
    "llama3": _LLAMA3_FAMILY,
    "llama-v3": _LLAMA3_FAMILY,
    "llama-bpe": _LLAMA3_FAMILY,
    "falcon3": _LLAMA3_FAMILY,
    "lfm2": _LLAMA3_FAMILY,
    "smaug-bpe": _PreTokenizer((_LLAMA3,)),
    "dbrx": _PreTokenizer((_LLAMA3,)),
    "glm4": _PreTokenizer((_LLAMA3,)),
    "chatglm-bpe": _PreTokenizer((_LLAMA3,)),
    "qwen2": _PreTokenizer((_QWEN2,), nfc=True),
    "deepseek-r1-qwen": _PreTokenizer((_QWEN2,)),
    "deepseek-v3": _PreTokenizer(_DEEPSEEK3),
    "tekken": _PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True),
    "gpt-4o": _PreTokenizer((_GPT4O,)),
    "llama4": _PreTokenizer((_GPT4O,)),
}


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """The tokenizer.ggml.* keys of a file, by their last names."""

    model: str
    tokens: list[str]
    token_type: list[int]
    pre: str | None = None
    merges: list[str] | None = None
    scores: list[float] | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    eot_token_id: int | None = None
    eom_token_id: int | None = None
    unknown_token_id: int | None = None
    add_bos_token: bool | None = None
    add_eos_token: bool = False
    add_space_prefix: bool = True

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> "GgufVocabulary":
        """Pick the keys out; ValueError for what no tokenizer can do without."""
        keys = {spec.name: f"tokenizer.ggml.{spec.name}" for spec in dataclasses.fields(cls)}
        values = {name: metadata[key] for name, key in keys.items() if key in metadata}
        for name in ("model", "tokens"):
            if name not in values:
                raise ValueError(f"the GGUF file has no {keys[name]}; convert the model again with its tokenizer")
        for name in ("tokens", "token_type", "merges", "scores"):
            if name in values:
                values[name] = list(values[name])
        values.setdefault("token_type", [_NORMAL] * len(values["tokens"]))
        vocabulary = cls(**values)
        vocabulary._check()
        return vocabulary

    @property
    def bos_token(self) -> str | None:
        return None if self.bos_token_id is None else self.tokens[self.bos_token_id]

    @property
    def eos_token(self) -> str | None:
        return None if self.eos_token_id is None else self.tokens[self.eos_token_id]

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Every id that ends a sequence: those the file names, and control tokens known to do so."""
        named = [self.eos_token_id, self.eot_token_id, self.eom_token_id]
        known = _END_OF_MESSAGE if self.eot_token_id is not None else _END_OF_TURN + _END_OF_MESSAGE
        found = [token_id for token_id in self.ids_of(_CONTROL) if self.tokens[token_id] in known]
        return tuple(dict.fromkeys(token_id for token_id in named + found if token_id is not None))

    def ids_of(self, *kinds: int) -> list[int]:
        """Ids of the entries of some token types."""
        return [token_id for token_id, kind in enumerate(self.token_type) if kind in kinds]

    def _check(self) -> None:
        num_tokens = len(self.tokens)
        for name, values in (("token_type", self.token_type), ("scores", self.scores)):
            if values is not None and len(values) != num_tokens:
                raise ValueError(f"tokenizer.ggml.{name} has {len(values)} entries for {num_tokens} tokens")
        for name in ("bos", "eos", "eot", "eom", "unknown"):
            token_id = getattr(self, f"{name}_token_id")
            if token_id is not None and not 0 <= token_id < num_tokens:
                raise ValueError(f"tokenizer.ggml.{name}_token_id is {token_id}, outside of {num_tokens} tokens")


def build_backend(vocabulary: GgufVocabulary) -> tokenizers.Tokenizer:
    """A `tokenizers` tokenizer with this vocabulary and its rules; ValueError if it would not be the right one."""
    vocab = dict(zip(vocabulary.tokens, range(len(vocabulary.tokens)), strict=True))
    if len(vocab) != len(vocabulary.tokens):
        raise ValueError("tokenizer.ggml.tokens lists a token twice; the file is damaged, convert the model again")
    if vocabulary.model == "gpt2":
        backend, add_bos = _byte_level(vocabulary, vocab)
    elif vocabulary.model == "llama":
        backend, add_bos = _sentencepiece(vocabulary, vocab), True
    else:
        raise ValueError(
            f"tokenizer.ggml.model {vocabulary.model!r} is not supported; supported are 'gpt2' and 'llama'"
        )
    _add_tokens(backend, vocabulary)
    _add_post_processor(
        backend, vocabulary, add_bos=add_bos if vocabulary.add_bos_token is None else vocabulary.add_bos_token
    )
    return backend


def gguf_chat_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Chat templates by name, "default" for the unnamed one."""
    prefix = "tokenizer.chat_template"
    templates = {key.removeprefix(prefix + "."): text for key, text in metadata.items() if key.startswith(prefix + ".")}
    if prefix in metadata:
        templates["default"] = metadata[prefix]
    return templates


def _byte_level(vocabulary: GgufVocabulary, vocab: dict[str, int]) -> tuple[tokenizers.Tokenizer, bool]:
    name = vocabulary.pre
    if name is None or name not in PRE_TOKENIZERS:
        stated = "no tokenizer.ggml.pre in the file" if name is None else f"pre-tokenizer {name!r} is not supported"
        raise ValueError(f"{stated}; supported are: {', '.join(sorted(PRE_TOKENIZERS))}")
    if vocabulary.merges is None:
        raise ValueError("the GGUF file has no tokenizer.ggml.merges; convert the model again with its tokenizer")
    family = PRE_TOKENIZERS[name]
    merges = [_split_merge(merge) for merge in vocabulary.merges]
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=family.ignore_merges))
    if family.nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(_pre_tokenizer_steps(family.splits))
    backend.decoder = decoders.ByteLevel()
    return backend, family.add_bos


def _pre_tokenizer_steps(splits: Sequence[str]) -> list[pre_tokenizers.PreTokenizer]:
    """Splits in order, then bytes. The two patterns that the library has built in run without its regex engine."""
    steps: list[pre_tokenizers.PreTokenizer] = []
    ends_with_gpt2 = splits[-1] == _GPT2
    for pattern in splits[:-1] if ends_with_gpt2 else splits:
        if pattern == r"\p{N}":
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        else:
            steps.append(pre_tokenizers.Split(Regex(pattern), behavior="isolated"))
    return [*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=ends_with_gpt2)]


def _split_merge(merge: str) -> tuple[str, str]:
    """Cut a merge at its first space after the first character (a left part may be a space itself)."""
    at = merge.find(" ", 1)
    return merge[:at], merge[at + 1 :]


def _sentencepiece(vocabulary: GgufVocabulary, vocab: dict[str, int]) -> tokenizers.Tokenizer:
    """sentencepiece's BPE: the pair whose union has the highest score merges first; unknown characters become bytes."""
    unknown_id = vocabulary.unknown_token_id
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=_merges_from_scores(vocabulary),
            unk_token=None if unknown_id is None else vocabulary.tokens[unknown_id],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE_MARK)]
    strip: list[decoders.Decoder] = []
    if vocabulary.add_space_prefix:
        spaces.insert(0, normalizers.Prepend(SPACE_MARK))
        strip.append(decoders.Strip(" ", 1, 0))
    backend.normalizer = normalizers.Sequence(spaces)
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return backend


def _merges_from_scores(vocabulary: GgufVocabulary) -> list[tuple[str, str]]:
    """Every way to make an entry of two others, best score first.

    Control, byte and unknown entries never come out of text, so they take no part.
    """
    scores = vocabulary.scores
    if scores is None:
        raise ValueError("the GGUF file has no tokenizer.ggml.scores; convert the model again with its tokenizer")
    ids = {vocabulary.tokens[token_id]: token_id for token_id in vocabulary.ids_of(_NORMAL, _USER_DEFINED)}
    merges: list[tuple[float, int, int, str, str]] = []
    for piece, token_id in ids.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in ids and right in ids:
                merges.append((-scores[token_id], ids[left], ids[right], left, right))
    merges.sort()
    return [(left, right) for _, _, _, left, right in merges]


def _add_tokens(backend: tokenizers.Tokenizer, vocabulary: GgufVocabulary) -> None:
    """Control and user-defined entries are found in the text as they are, before anything else."""
    for kinds, special in (((_CONTROL, _UNKNOWN), True), ((_USER_DEFINED,), False)):
        texts = [vocabulary.tokens[token_id] for token_id in vocabulary.ids_of(*kinds)]
        added = [AddedToken(text, special=special, normalized=False) for text in texts]
        backend.add_tokens(added)  # pyright: ignore[reportUnknownMemberType] (untyped list)


def _add_post_processor(backend: tokenizers.Tokenizer, vocabulary: GgufVocabulary, *, add_bos: bool) -> None:
    """Let `encode` put BOS before and EOS after a text where the file asks for it."""
    before = [_wanted(vocabulary.bos_token, "bos")] if add_bos else []
    after = [_wanted(vocabulary.eos_token, "eos")] if vocabulary.add_eos_token else []
    if not before + after:
        return
    backend.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, *before, "$B", *after],
        special_tokens=[(token, backend.token_to_id(token)) for token in dict.fromkeys(before + after)],
    )


def _wanted(token: str | None, name: str) -> str:
    if token is None:
        raise ValueError(
            f"texts of this model begin or end with {name}, but there is no tokenizer.ggml.{name}_token_id"
        )
    return token
