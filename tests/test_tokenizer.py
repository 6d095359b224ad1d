"""Tokenizers against references: token ids of a plain-Python BPE, of sentencepiece, and of transformers."""

import json
from collections.abc import Callable, Mapping
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import regex
import sentencepiece
import transformers
from tokenizers import pre_tokenizers

from pelton.errors import RequestError
from pelton.tokenizer import Tokenizer
from sample_texts import embedded_metadata, embedded_model_file, sample_lines

# Pre-tokenizers in the wording of llama.cpp's src/llama-vocab.cpp, which is not the wording of the code under test.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_NOT_LOWER, _NOT_UPPER = r"[\p{L}\p{M}--[\p{Ll}]]", r"[\p{L}\p{M}--[\p{Lu}\p{Lt}]]"
_END = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA_CPP_PATTERNS = {
    "gpt-2": [_GPT2],
    "smollm": [r"\p{N}", _GPT2],
    "llama-bpe": [
        _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "deepseek-r1-qwen": [
        _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "tekken": [
        rf"(?V1)[^\r\n\p{{L}}\p{{N}}]?{_NOT_LOWER}*{_NOT_UPPER}+|[^\r\n\p{{L}}\p{{N}}]?{_NOT_LOWER}+{_NOT_UPPER}*"
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n\/]*" + _END
    ],
    "gpt-4o": [
        rf"(?V1)[^\r\n\p{{L}}\p{{N}}]?{_NOT_LOWER}*{_NOT_UPPER}+{_CONTRACTIONS}?"
        rf"|[^\r\n\p{{L}}\p{{N}}]?{_NOT_LOWER}+{_NOT_UPPER}*{_CONTRACTIONS}?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n\/]*" + _END
    ],
    "deepseek-v3": [
        r"\p{N}{1,3}",
        "[一-龥぀-ゟ゠-ヿ]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        r"| ?[\p{P}\p{S}]+[\r\n]*" + _END,
    ],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"],
}


class PlainBPE:
    """Byte-level BPE as Sennrich et al. (2016) and GPT-2 describe it, as slow and as plain as it can be."""

    def __init__(self, metadata: Mapping[str, Any], patterns: list[str]) -> None:
        tokens = metadata["tokenizer.ggml.tokens"]
        self._ids = {token: token_id for token_id, token in enumerate(tokens)}
        self._ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(metadata["tokenizer.ggml.merges"])}
        control = [
            token for token, kind in zip(tokens, metadata["tokenizer.ggml.token_type"], strict=True) if kind == 3
        ]
        self._control = regex.compile("(" + "|".join(map(regex.escape, sorted(control, key=len, reverse=True))) + ")")
        self._patterns = [regex.compile(pattern) for pattern in patterns]
        kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
        moved = [byte for byte in range(256) if byte not in kept]
        self._spelling = {byte: chr(byte) for byte in kept} | {byte: chr(256 + i) for i, byte in enumerate(moved)}
        self._words: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for position, part in enumerate(self._control.split(text)):
            if position % 2:
                ids.append(self._ids[part])
                continue
            words = [part]
            for pattern in self._patterns:
                words = [piece for word in words for piece in _isolate(pattern, word)]
            for word in words:
                ids += self._words.setdefault(word, self._merge(word)) if word not in self._words else self._words[word]
        return ids

    def _merge(self, word: str) -> list[int]:
        parts = [self._spelling[byte] for byte in word.encode()]
        while len(parts) > 1:
            rank, at = min((self._ranks.get(pair, 10**9), at) for at, pair in enumerate(pairwise(parts)))
            if rank == 10**9:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return [self._ids[part] for part in parts]


def _isolate(pattern: regex.Pattern[str], text: str) -> list[str]:
    """Matches and what lies between them, in order."""
    pieces, end = [], 0
    for match in pattern.finditer(text):
        pieces += [text[end : match.start()], match[0]]
        end = match.end()
    return [piece for piece in [*pieces, text[end:]] if piece]


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    return Tokenizer.from_gguf(embedded_metadata())


def test_ids_of_the_embedded_model_are_those_of_the_plain_algorithm(smollm2: Tokenizer) -> None:
    reference = PlainBPE(embedded_metadata(), LLAMA_CPP_PATTERNS["smollm"])
    lines = sample_lines(2000)
    assert [smollm2.encode(line) for line in lines] == [reference.encode(line) for line in lines]


@pytest.mark.parametrize("name", sorted(LLAMA_CPP_PATTERNS))
def test_each_pre_tokenizer_cuts_as_llama_cpp_says(name: str) -> None:
    metadata = {**embedded_metadata(), "tokenizer.ggml.pre": name, "tokenizer.ggml.add_bos_token": False}
    reference = PlainBPE(metadata, LLAMA_CPP_PATTERNS[name])
    tokenizer = Tokenizer.from_gguf(metadata)
    lines = sample_lines(300, seed=1)
    assert [tokenizer.encode(line) for line in lines] == [reference.encode(line) for line in lines]


def test_ids_equal_those_of_transformers() -> None:
    # transformers reads the pre-tokenizer "smollm" of a GGUF as GPT-2's, which does not single out digits. The model's
    # original tokenizer.json does: individual digits, then byte-level words. It takes that one's place.
    file = embedded_model_file()
    reference = transformers.AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    published = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    reference.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(published)
    tokenizer = Tokenizer.from_gguf(embedded_metadata())
    for line in sample_lines(2000, seed=2):
        ids = tokenizer.encode(line)
        assert ids == reference(line)["input_ids"]
        assert tokenizer.decode(ids) == reference.decode(ids, skip_special_tokens=True)
    assert tokenizer.bos_token_id == reference.bos_token_id
    assert tokenizer.eos_token == reference.eos_token
    assert tokenizer.chat_template == reference.chat_template


def test_decoding_gives_the_text_back(smollm2: Tokenizer) -> None:
    for line in sample_lines(2000, seed=3):
        ids = smollm2.encode(line)
        assert smollm2.decode(ids, skip_special_tokens=False) == line
        assert b"".join(smollm2.token_bytes(token_id) for token_id in ids) == line.encode()


def test_qwen2_composes_characters_as_its_tokenizer_json_does() -> None:
    metadata = {**embedded_metadata(), "tokenizer.ggml.pre": "qwen2"}
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.encode("cafe\u0301") == tokenizer.encode("caf\u00e9")


def test_special_tokens_of_the_embedded_model(smollm2: Tokenizer) -> None:
    assert (smollm2.bos_token, smollm2.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert smollm2.eos_token_ids == (2, 0)  # <|im_end|>, and <|endoftext|>, after which no text goes on
    assert smollm2.special_ids == frozenset(range(17))
    assert smollm2.vocab_size == 49152
    assert smollm2.decode([1, 4093, 2]) == "user"
    assert smollm2.token_bytes(1) == b"<|im_start|>"


def test_parts_of_characters_keep_their_bytes(smollm2: Tokenizer) -> None:
    ids = smollm2.encode("龜")
    assert len(ids) > 1
    assert b"".join(map(smollm2.token_bytes, ids)) == "龜".encode()


def test_ids_outside_the_vocabulary_stand_for_nothing(smollm2: Tokenizer) -> None:
    assert smollm2.decode([-1, 19556, 49152, 2**40]) == "Hello"


@pytest.mark.parametrize("text", ["\ud800", "abc \udfff d", "\ud83d\ude00"])
def test_lone_surrogates_are_refused(smollm2: Tokenizer, text: str) -> None:
    with pytest.raises(RequestError, match="lone surrogate") as error:
        smollm2.encode(text)
    assert error.value.status == 400


def test_bos_is_added_once() -> None:
    tokenizer = Tokenizer.from_gguf({**embedded_metadata(), "tokenizer.ggml.add_bos_token": True})
    plain = Tokenizer.from_gguf(embedded_metadata()).encode("Hi")
    assert tokenizer.encode("Hi") == [1, *plain]
    assert tokenizer.encode("<|im_start|>Hi") == [1, *plain]
    assert tokenizer.encode("Hi", add_special_tokens=False) == plain


def test_a_text_keeps_its_repeated_bos_where_none_is_added(smollm2: Tokenizer) -> None:
    assert smollm2.encode("<|im_start|><|im_start|>") == [1, 1]


def test_eos_is_added_where_the_file_asks_for_it() -> None:
    tokenizer = Tokenizer.from_gguf({**embedded_metadata(), "tokenizer.ggml.add_eos_token": True})
    assert tokenizer.encode("Hello") == [19556, 2]


def test_user_defined_tokens_stay_whole_and_visible() -> None:
    types = list(embedded_metadata()["tokenizer.ggml.token_type"])
    types[4] = 4  # <reponame>
    tokenizer = Tokenizer.from_gguf({**embedded_metadata(), "tokenizer.ggml.token_type": types})
    ids = tokenizer.encode("a<reponame>b")
    assert ids[1] == 4
    assert tokenizer.decode(ids) == "a<reponame>b"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.pre": "no-such"}, "'no-such' is not supported; supported are: .*smollm"),
        ({"tokenizer.ggml.pre": None}, "no tokenizer.ggml.pre"),
        ({"tokenizer.ggml.model": "t5"}, "'t5' is not supported"),
        ({"tokenizer.ggml.tokens": ["a", "a"], "tokenizer.ggml.token_type": [1, 1]}, "outside of 2|twice"),
        ({"tokenizer.ggml.token_type": [1]}, "1 entries for 49152 tokens"),
        ({"tokenizer.ggml.eos_token_id": 49152}, "eos_token_id is 49152"),
        ({"tokenizer.ggml.merges": None}, "no tokenizer.ggml.merges"),
        ({"tokenizer.ggml.tokens": None}, "no tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.bos_token_id": None, "tokenizer.ggml.add_bos_token": True}, "no tokenizer.ggml.bos_token_id"),
    ],
)
def test_metadata_that_cannot_give_the_right_tokenizer_is_refused(change: dict[str, Any], message: str) -> None:
    metadata = {key: value for key, value in {**embedded_metadata(), **change}.items() if value is not None}
    with pytest.raises(ValueError, match=message):
        Tokenizer.from_gguf(metadata)


@pytest.fixture(scope="module")
def processor() -> sentencepiece.SentencePieceProcessor:
    """A small sentencepiece BPE model with Llama 2's settings."""
    model = BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(
            line for text in sample_lines(400, seed=5) for line in text.splitlines() if "\0" not in line
        ),
        model_writer=model,
        model_type="bpe",
        vocab_size=2000,
        character_coverage=0.98,
        byte_fallback=True,
        split_digits=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        minloglevel=2,
        num_threads=1,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def _gguf_of(processor: sentencepiece.SentencePieceProcessor, **changes: Any) -> dict[str, Any]:
    """GGUF metadata of a sentencepiece model as llama.cpp's converter writes it."""
    ids = range(processor.get_piece_size())

    def kind(token_id: int) -> int:
        tests: dict[int, Callable[[int], bool]] = {
            2: processor.is_unknown, 3: processor.is_control, 5: processor.is_unused, 6: processor.is_byte
        }  # fmt: skip
        return next((value for value, test in tests.items() if test(token_id)), 1)

    metadata = {
        "model": "llama",
        "tokens": [processor.id_to_piece(token_id) for token_id in ids],
        "scores": [processor.get_score(token_id) for token_id in ids],
        "token_type": [kind(token_id) for token_id in ids],
        "unknown_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}


def test_ids_of_a_sentencepiece_vocabulary_are_those_of_sentencepiece(
    processor: sentencepiece.SentencePieceProcessor,
) -> None:
    tokenizer = Tokenizer.from_gguf(_gguf_of(processor))
    for line in sample_lines(1000, seed=6):
        ids = tokenizer.encode(line)
        assert ids == [1, *processor.encode(line)]
        assert tokenizer.decode(ids) == processor.decode(ids) == line


def test_sentencepiece_without_the_leading_space(processor: sentencepiece.SentencePieceProcessor) -> None:
    tokenizer = Tokenizer.from_gguf(_gguf_of(processor, add_space_prefix=False, add_bos_token=False))
    for text in ("Hello", " Hello", "  two", "x<s>y"):
        assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text


def test_a_continuation_keeps_the_space_before_its_first_word(processor: sentencepiece.SentencePieceProcessor) -> None:
    tokenizer = Tokenizer.from_gguf(_gguf_of(processor))
    ids = tokenizer.encode("the dog", add_special_tokens=False)
    assert tokenizer.decode(ids) == "the dog"
    assert tokenizer.decode(ids, continuation=True) == " the dog"


def _write(folder: Path, files: Mapping[str, Any]) -> None:
    for name, content in files.items():
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The embedded model's tokenizer as a Hugging Face directory, in the words of its original tokenizer.json."""
    metadata = embedded_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    specification = {
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
        "padding": None,
        "added_tokens": [
            {"id": i, "content": tokens[i], "special": True}
            | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            for i in range(17)
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            ],
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {token: token_id for token_id, token in enumerate(tokens)},
            "merges": metadata["tokenizer.ggml.merges"],
        },
    }
    config = {
        "bos_token": "<|im_start|>",
        "eos_token": {"content": "<|im_end|>", "special": True},
        "model_max_length": 8,
    }
    _write(tmp_path, {"tokenizer.json": specification, "tokenizer_config.json": config})
    return tmp_path


def test_a_directory_gives_the_same_tokenizer_as_the_gguf(folder: Path, smollm2: Tokenizer) -> None:
    tokenizer = Tokenizer.from_directory(folder)
    lines = sample_lines(200, seed=7)
    assert [tokenizer.encode(line) for line in lines] == [smollm2.encode(line) for line in lines]
    assert (tokenizer.bos_token_id, tokenizer.eos_token, tokenizer.eos_token_ids) == (1, "<|im_end|>", (2,))
    assert tokenizer.special_ids == smollm2.special_ids


def test_generation_config_adds_ids_that_end_a_sequence(folder: Path) -> None:
    _write(folder, {"generation_config.json": {"eos_token_id": [0, 2]}})
    assert Tokenizer.from_directory(folder).eos_token_ids == (2, 0)


@pytest.mark.parametrize(
    ("files", "template"),
    [
        ({}, None),
        ({"tokenizer_config.json": {"chat_template": "A"}}, "A"),
        ({"tokenizer_config.json": {"chat_template": [{"name": "default", "template": "B"}]}}, "B"),
        ({"tokenizer_config.json": {"chat_template": "A"}, "chat_template.jinja": "C\n"}, "C\n"),
    ],
)
def test_chat_template_of_a_directory(folder: Path, files: dict[str, Any], template: str | None) -> None:
    _write(folder, files)
    assert Tokenizer.from_directory(folder).chat_template == template


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no tokenizer.json"),
        ({"tokenizer.model": "x"}, "tokenizer.model alone .* is not supported yet"),
        ({"tokenizer.json": "{"}, "cannot read .*tokenizer.json"),
    ],
)
def test_directories_without_a_usable_tokenizer_are_refused(
    tmp_path: Path, files: dict[str, str], message: str
) -> None:
    _write(tmp_path, files)
    with pytest.raises(ValueError, match=message):
        Tokenizer.from_directory(tmp_path)


def test_configurations_that_contradict_the_vocabulary_are_refused(folder: Path) -> None:
    _write(folder, {"tokenizer_config.json": {"eos_token": "<nowhere>"}})
    with pytest.raises(ValueError, match="'<nowhere>'"):
        Tokenizer.from_directory(folder)
    _write(folder, {"tokenizer_config.json": {"eos_token": 3}})
    with pytest.raises(ValueError, match=r"cannot read .*tokenizer_config.json"):
        Tokenizer.from_directory(folder)
