"""Matchers on a small byte-level vocabulary: masks, forced tokens, ends, errors, and the cache of grammars."""

import numpy as np
import pytest
from llguidance import LLParserLimits

from pelton.errors import RequestError
from pelton.structured import matcher as module
from pelton.structured.limits import PARSER_LIMITS
from pelton.structured.masks import Words, num_words
from pelton.structured.matcher import CompiledGrammars, Matcher
from pelton.tokenizer import Tokenizer

from fakes import tiny_tokenizer

NUM_LOGITS = 300  # more than the tokenizer has


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tiny_tokenizer()


@pytest.fixture
def grammars(tokenizer: Tokenizer) -> CompiledGrammars:
    return CompiledGrammars(tokenizer, NUM_LOGITS, tokenizer.eos_token_ids)


def start(grammars: CompiledGrammars, grammar: str) -> Matcher:
    return grammars.matcher(grammar, new_words())


def new_words() -> Words:
    return np.zeros(num_words(NUM_LOGITS), dtype=np.int32)


def allowed(words: Words) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist())


def texts(tokenizer: Tokenizer, matcher: Matcher) -> set[str]:
    words = new_words()
    matcher.fill(words)
    return {tokenizer.decode([token_id], skip_special_tokens=False) for token_id in allowed(words)}


def test_the_mask_is_what_the_grammar_allows_token_by_token(tokenizer: Tokenizer, grammars: CompiledGrammars) -> None:
    words = new_words()
    matcher = grammars.matcher('start: "hello" | "hat"', words)
    assert {tokenizer.decode([token_id]) for token_id in allowed(words)} == {"h", "he", "hell", "hello"}
    assert matcher.consume(tokenizer.encode("h")[0])
    assert texts(tokenizer, matcher) == {"e", "a"}
    assert matcher.consume(tokenizer.encode("a")[0])
    assert texts(tokenizer, matcher) == {"t"}


def test_an_option_that_begins_another_may_end_or_go_on(tokenizer: Tokenizer, grammars: CompiledGrammars) -> None:
    matcher = start(grammars, 'start: "a" | "ab"')
    matcher.consume(tokenizer.encode("a")[0])
    assert texts(tokenizer, matcher) == {"b", "<|im_end|>"}
    assert not matcher.is_complete
    matcher.consume(tokenizer.encode("b")[0])
    assert texts(tokenizer, matcher) == {"<|im_end|>"}
    assert matcher.is_complete and matcher.error is None


def test_forced_tokens_are_those_of_the_text_that_must_follow(tokenizer: Tokenizer, grammars: CompiledGrammars) -> None:
    matcher = start(grammars, 'start: ("x" | "y") "DEF hello" /[0-9]/')
    assert matcher.consume_forced() == []
    matcher.consume(tokenizer.encode("x")[0])
    forced = matcher.consume_forced()
    assert tokenizer.decode(forced) == "DEF hello"
    assert forced == tokenizer.encode("DEF hello")
    assert texts(tokenizer, matcher) == set("0123456789")
    assert matcher.consume_forced() == []


def test_a_special_token_is_never_text(tokenizer: Tokenizer, grammars: CompiledGrammars) -> None:
    anything = start(grammars, r"start: /(.|\n)*/")
    words = new_words()
    anything.fill(words)
    ids = allowed(words)
    assert ids & tokenizer.special_ids == set(tokenizer.eos_token_ids)  # the output may end at once
    assert max(ids) < tokenizer.vocab_size
    spelled = start(grammars, 'start: "a<|im_end|>b"')
    spelled.consume(tokenizer.encode("a")[0])
    forced = spelled.consume_forced()
    assert tokenizer.decode(forced) == "<|im_end|>b"
    assert tokenizer.special_ids.isdisjoint(forced)


def test_characters_of_several_tokens_are_allowed_byte_by_byte(
    tokenizer: Tokenizer, grammars: CompiledGrammars
) -> None:
    cat, dog = tokenizer.encode("🐈"), tokenizer.encode("🐕")
    assert len(cat) == len(dog) == 4 and cat[:3] == dog[:3]
    matcher = start(grammars, 'start: "🐈" | "🐕"')
    words = new_words()
    for index in range(3):
        matcher.fill(words)
        assert allowed(words) == {cat[index]}
        matcher.consume(cat[index])
    matcher.fill(words)
    assert allowed(words) == {cat[3], dog[3]}


def test_a_token_that_is_not_allowed_is_an_error_for_good(tokenizer: Tokenizer, grammars: CompiledGrammars) -> None:
    matcher = start(grammars, 'start: "abc"')
    assert not matcher.consume(tokenizer.encode("z")[0])
    assert matcher.error is not None
    assert not matcher.consume(tokenizer.encode("a")[0])
    assert not matcher.is_complete
    assert matcher.consume_forced() == []


@pytest.mark.parametrize("grammar", ["", "start: /a(/", "start: nothing", "start: start", '{"grammars": 5}', "\x00"])
def test_a_bad_grammar_is_refused_and_not_kept(grammars: CompiledGrammars, grammar: str) -> None:
    with pytest.raises(RequestError, match="the grammar cannot be used") as refused:
        start(grammars, grammar)
    assert refused.value.status == 400
    assert grammars.num_cached == 0


def test_a_grammar_that_becomes_too_complex_is_an_error_not_an_end(
    tokenizer: Tokenizer, grammars: CompiledGrammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LIMITS", LLParserLimits(**{**PARSER_LIMITS, "max_items_in_row": 200}))
    matcher = start(grammars, 'start: x\nx: x x x | x x | /[a-z]+/ | " "')
    words = new_words()
    for _ in range(500):
        matcher.fill(words)
        if matcher.error is not None or not matcher.consume(tokenizer.encode(" ")[0]):
            break
    assert matcher.error is not None
    assert "items" in matcher.error


def test_every_request_has_its_own_place_in_a_grammar_compiled_once(
    tokenizer: Tokenizer, grammars: CompiledGrammars
) -> None:
    first, second = (start(grammars, 'start: "ab" | "cd"') for _ in range(2))
    first.consume(tokenizer.encode("a")[0])
    assert texts(tokenizer, first) == {"b"}
    assert texts(tokenizer, second) == {"a", "c"}
    assert grammars.num_cached == 1


def test_the_cache_keeps_the_grammars_used_last(
    grammars: CompiledGrammars, monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer
) -> None:
    monkeypatch.setattr(module, "MAX_CACHED_GRAMMARS", 3)
    for index in range(10):
        start(grammars, f'start: "{index}"')
    assert grammars.num_cached == 3
    monkeypatch.setattr(module, "MAX_CACHED_CHARACTERS", 60)
    long = f'start: "{"b" * 60}"'
    assert texts(tokenizer, start(grammars, long)) == {"b"}  # larger than all the room, and not kept
    assert grammars.num_cached == 0
