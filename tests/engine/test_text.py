"""Streamed text: equal to the whole decode however tokens are split, and cut exactly at stop strings."""

import random

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models

from pelton.engine.text import TextStream
from pelton.tokenizer import Tokenizer
from pelton.tokenizer.special import SpecialTokens
from pelton.types import SamplingParams
from sample_texts import embedded_metadata, sample_lines

TOKENIZER = Tokenizer.from_gguf(embedded_metadata())


def _letters(*pieces: str) -> Tokenizer:
    """A vocabulary of the given pieces, ids in order; <eos> is special."""
    vocab = {piece: token_id for token_id, piece in enumerate([*pieces, "<eos>"])}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend, SpecialTokens(eos_token="<eos>", eos_token_ids=(len(pieces),)))


def _stream(tokenizer: Tokenizer, params: SamplingParams, pushes: list[list[int]]) -> tuple[str, int, str | None]:
    """The joined text, the number of tokens read, and the stop string."""
    stream = TextStream(tokenizer, params)
    text, num_tokens = "", 0
    for ids in pushes:
        step = stream.push(ids)
        text += step.text
        num_tokens += step.num_tokens
        if step.stop is not None:
            return text, num_tokens, step.stop
    return text + stream.finish(), num_tokens, None


def _splits(ids: list[int], cuts: set[int]) -> list[list[int]]:
    pushes: list[list[int]] = [[]]
    for index, token_id in enumerate(ids):
        if index in cuts:
            pushes.append([])
        pushes[-1].append(token_id)
    return pushes


@given(
    ids=st.lists(st.one_of(st.integers(0, 49151), st.integers(190, 272)), max_size=30),
    cuts=st.sets(st.integers(0, 30)),
    skip=st.booleans(),
)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_deltas_join_to_the_whole_decode(ids: list[int], cuts: set[int], skip: bool) -> None:
    params = SamplingParams(skip_special_tokens=skip)
    text, num_tokens, stop = _stream(TOKENIZER, params, _splits(ids, cuts))
    # The library's decoder is an independent witness: it decodes the bytes of the whole list at once.
    assert text == TOKENIZER._backend.decode(ids, skip_special_tokens=skip)
    assert text == TOKENIZER.decode(ids, skip_special_tokens=skip)
    assert (num_tokens, stop) == (len(ids), None)


def test_real_text_streams_token_by_token() -> None:
    for line in sample_lines(300, seed=11):
        ids = TOKENIZER.encode(line)
        params = SamplingParams(skip_special_tokens=False)
        assert _stream(TOKENIZER, params, [[token_id] for token_id in ids])[0] == line


def test_incomplete_characters_wait() -> None:
    text = "ok 🫠 龜 é 👩‍👩‍👧 end"
    stream = TextStream(TOKENIZER, SamplingParams())
    deltas = [stream.push([token_id]).text for token_id in TOKENIZER.encode(text)]
    assert "" in deltas
    assert not any("\ufffd" in delta for delta in deltas)
    assert "".join(deltas) == text
    assert stream.finish() == ""


@pytest.mark.parametrize("num_tokens", range(1, 5))
def test_a_dangling_partial_character_becomes_one_replacement_character(num_tokens: int) -> None:
    ids = TOKENIZER.encode("a🫠")
    assert len(ids) == 4
    cut = ids[:num_tokens]
    expected = "a" if num_tokens == 1 else "a🫠" if num_tokens == 4 else "a\ufffd"
    assert _stream(TOKENIZER, SamplingParams(), [cut])[0] == expected
    assert _stream(TOKENIZER, SamplingParams(), [[token_id] for token_id in cut])[0] == expected


def test_a_real_replacement_character_does_not_hold_up_the_stream() -> None:
    stream = TextStream(TOKENIZER, SamplingParams())
    assert stream.push(TOKENIZER.encode("\ufffd")).text == "\ufffd"
    assert stream.push(TOKENIZER.encode("x")).text == "x"


def test_no_part_of_a_stop_string_is_sent() -> None:
    # The tokens are those of https://github.com/vllm-project/vllm/issues/3574: DEF, G, HI, J, K.
    tokenizer = _letters("DEF", "G", "HI", "J", "K")
    stream = TextStream(tokenizer, SamplingParams(stop=("DEFGHIJ",)))
    steps = [stream.push([token_id]) for token_id in (0, 1, 2, 3)]
    assert [step.text for step in steps] == [""] * 4
    assert steps[-1].stop == "DEFGHIJ"
    assert stream.finish() == ""
    assert _stream(tokenizer, SamplingParams(stop=("DEFGHIJ",)), [[0, 1, 2, 3, 4]]) == ("", 4, "DEFGHIJ")


def test_the_stop_string_is_kept_on_request() -> None:
    tokenizer = _letters("DEF", "G", "HI", "J", "K")
    params = SamplingParams(stop=("FGH",), include_stop_str_in_output=True)
    for pushes in ([[0, 1, 2, 3]], [[0], [1], [2], [3]]):
        assert _stream(tokenizer, params, pushes) == ("DEFGH", 3, "FGH")


def test_text_that_turns_out_not_to_be_a_stop_string_is_sent() -> None:
    tokenizer = _letters("a", "b", "c")
    stream = TextStream(tokenizer, SamplingParams(stop=("aab",)))
    assert [stream.push([token_id]).text for token_id in (0, 0, 0, 2)] == ["", "", "a", "aac"]
    assert stream.push([0]).text == ""
    assert stream.finish() == "a"


def _first_stop(text: str, stops: tuple[str, ...]) -> tuple[int, str] | None:
    """End and name of the stop string that completes first, the longest of several: by brute force."""
    for end in range(1, len(text) + 1):
        hits = [stop for stop in stops if text[:end].endswith(stop)]
        if hits:
            return end, max(hits, key=len)
    return None


def test_stop_strings_match_at_every_split() -> None:
    rng = random.Random(12)
    tokenizer = _letters("a", "b", "ab", "ba", "aab", "bba", "c")
    texts = ("a", "b", "ab", "ba", "aab", "bba", "c")
    for _ in range(2000):
        ids = [rng.randrange(7) for _ in range(rng.randint(0, 12))]
        stops = tuple("".join(rng.choices("ab", k=rng.randint(1, 5))) for _ in range(rng.randint(1, 3)))
        include = rng.random() < 0.5
        text = "".join(texts[token_id] for token_id in ids)
        hit = _first_stop(text, stops)
        expected = (text, len(ids), None)
        if hit is not None:
            end, stop = hit
            ends = [len("".join(texts[token_id] for token_id in ids[: n + 1])) for n in range(len(ids))]
            num_tokens = next(n + 1 for n, each in enumerate(ends) if each >= end)
            expected = (text[: end if include else end - len(stop)], num_tokens, stop)
        params = SamplingParams(stop=stops, include_stop_str_in_output=include)
        assert _stream(tokenizer, params, _splits(ids, set(rng.sample(range(12), 4)))) == expected
        assert _stream(tokenizer, params, [[token_id] for token_id in ids]) == expected


def test_a_stop_string_may_begin_and_end_inside_characters_of_several_tokens() -> None:
    ids = TOKENIZER.encode("one 🫠 two")
    params = SamplingParams(stop=("🫠",))
    text, num_tokens, stop = _stream(TOKENIZER, params, [[token_id] for token_id in ids])
    assert (text, stop) == ("one ", "🫠")
    assert num_tokens == len(TOKENIZER.encode("one 🫠"))


def test_stop_strings_within_min_tokens_do_not_count() -> None:
    tokenizer = _letters("a", "b", "c")
    params = SamplingParams(stop=("ab",), min_tokens=3)
    # The first "ab" completes with token 2; the second begins with token 3 and completes with token 4.
    assert _stream(tokenizer, params, [[0, 1, 0, 1, 2]]) == ("ab", 4, "ab")
    assert _stream(tokenizer, params, [[0], [1], [2], [2]]) == ("abcc", 4, None)
    assert _stream(tokenizer, SamplingParams(stop=("ab",), min_tokens=2), [[0, 1, 2]]) == ("abc", 3, None)
    # A completion that does not count may overlap with one that does.
    assert _stream(tokenizer, SamplingParams(stop=("aa",), min_tokens=2), [[0], [0], [0]]) == ("a", 3, "aa")
    # One that begins within min_tokens counts if it completes later, and then none of it is sent.
    assert _stream(tokenizer, params, [[2], [2], [0], [1]]) == ("cc", 4, "ab")


def test_the_token_that_ends_the_sequence_is_no_text() -> None:
    tokenizer = _letters("a", "b")
    stream = TextStream(tokenizer, SamplingParams(stop_token_ids=(1,)))
    step = stream.push([0, 1], ended_by_token=True)
    assert (step.text, step.num_tokens, step.stop) == ("a", 2, None)
    kept = TextStream(tokenizer, SamplingParams(include_stop_str_in_output=True))
    assert kept.push([0, 1], ended_by_token=True).text == "ab"


def test_a_first_token_that_ends_the_sequence_leaves_the_empty_string() -> None:
    tokenizer = _letters("a", "b")
    for token_id in (1, 2):  # an ordinary stop token, and <eos>
        stream = TextStream(tokenizer, SamplingParams())
        assert stream.push([token_id], ended_by_token=True).text + stream.finish() == ""
    assert _stream(tokenizer, SamplingParams(stop=("a",)), [[0]]) == ("", 1, "a")


def test_special_tokens_show_on_request() -> None:
    tokenizer = _letters("a")
    assert _stream(tokenizer, SamplingParams(), [[0, 1, 0]])[0] == "aa"
    assert _stream(tokenizer, SamplingParams(skip_special_tokens=False), [[0, 1, 0]])[0] == "a<eos>a"


def test_sentencepiece_text_goes_on_with_its_leading_space() -> None:
    vocab = {"\u2581the": 0, "\u2581dog": 1, "<0xE9>": 2, "<0xBE>": 3, "<0x9C>": 4, "s": 5}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    parts = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(parts)
    tokenizer = Tokenizer(backend, SpecialTokens())
    ids = [0, 1, 5, 2, 3, 4, 1]
    text = _stream(tokenizer, SamplingParams(), [[token_id] for token_id in ids])[0]
    assert text == " the dogs龜 dog" == tokenizer.decode(ids, continuation=True)
    assert tokenizer.decode(ids) == text[1:] == backend.decode(ids)
