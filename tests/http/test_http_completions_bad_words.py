"""bad_words: the token sequences that an engine is told not to write."""

import pytest

from fakes import Client, FakeEngine

BODIES = {
    "/v1/completions": {"prompt": "hi"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4},
}


@pytest.mark.parametrize("url", BODIES)
def test_a_word_is_ruled_out_at_the_start_and_after_a_space(url: str):
    engine = FakeEngine()
    fields = {"bad_words": ["hello", " w", "xyz", "hello"]}
    assert Client.of(engine).post(url, {**BODIES[url], **fields}).status_code == 200
    assert engine.calls[-1].params.bad_words_ids == (
        tuple(engine.ids("hello")),
        tuple(engine.ids(" hello")),
        tuple(engine.ids("w")),
        tuple(engine.ids(" w")),
        tuple(engine.ids("xyz")),
        tuple(engine.ids(" xyz")),
    )
    assert [len(ids) for ids in engine.calls[-1].params.bad_words_ids] == [1, 2, 1, 1, 3, 4]


@pytest.mark.parametrize("words", [None, []])
def test_no_words_are_no_restriction(words: list[str] | None):
    engine = FakeEngine()
    assert Client.of(engine).post("/v1/completions", {"prompt": "hi", "bad_words": words}).status_code == 200
    assert engine.calls[-1].params.bad_words_ids == ()


def test_many_words_are_encoded_beside_the_event_loop():
    engine = FakeEngine()
    words = [f"word{number}" for number in range(1000)]
    assert Client.of(engine).post("/v1/completions", {"prompt": "hi", "bad_words": words}).status_code == 200
    assert len(engine.calls[-1].params.bad_words_ids) == 2000


def test_a_word_of_spaces_rules_out_a_space():
    engine = FakeEngine()
    assert Client.of(engine).post("/v1/completions", {"prompt": "hi", "bad_words": ["  "]}).status_code == 200
    assert engine.calls[-1].params.bad_words_ids == (tuple(engine.ids(" ")),)
