"""The parameters that users of vLLM send have an effect each, or are refused by name."""

from typing import Any

import pytest

from fakes import EOS, Client, FakeEngine

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
USER = [{"role": "user", "content": "hi"}]
END = FakeEngine().ids(EOS)[0]
HELLO = FakeEngine().ids("hello")


def ask(engine: FakeEngine, url: str, **fields: Any) -> dict[str, Any]:
    body = {"max_tokens": 4, **fields}
    body |= {"prompt": "hi"} if url == COMPLETIONS else {"messages": USER}
    response = Client.of(engine).post(url, body)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("url", [COMPLETIONS, CHAT])
@pytest.mark.parametrize(
    ("field", "value", "name", "expected"),
    [
        ("min_tokens", 2, "min_tokens", 2),
        ("stop_token_ids", [65], "stop_token_ids", (65,)),
        ("include_stop_str_in_output", True, "include_stop_str_in_output", True),
        ("ignore_eos", True, "ignore_eos", True),
        ("skip_special_tokens", False, "skip_special_tokens", False),
        ("allowed_token_ids", [65, 66], "allowed_token_ids", (65, 66)),
        ("logit_bias", {"65": 3}, "logit_bias", {65: 3.0}),
        ("min_p", 0.25, "min_p", 0.25),
        ("top_k", 5, "top_k", 5),
        ("repetition_penalty", 1.5, "repetition_penalty", 1.5),
    ],
)
def test_api_14_a_parameter_reaches_the_engine(url: str, field: str, value: Any, name: str, expected: Any):
    engine = FakeEngine(script=[65] * 4)
    ask(engine, url, **{field: value})
    assert getattr(engine.calls[0].params, name) == expected


@pytest.mark.parametrize("top_k", [0, -1])
def test_api_14_top_k_is_off_at_0_and_minus_1(top_k: int):
    engine = FakeEngine(script=[65])
    ask(engine, COMPLETIONS, top_k=top_k, temperature=1.0)
    assert engine.calls[0].params.top_k <= 0
    assert not engine.calls[0].params.greedy


def test_api_14_max_completion_tokens_is_the_limit_of_a_chat():
    assert ask(FakeEngine(), CHAT, max_completion_tokens=3, max_tokens=9)["usage"]["completion_tokens"] == 3


def test_api_14_special_tokens_are_shown_on_request():
    engine = FakeEngine(script=[65, END, 66])
    shown = ask(engine, COMPLETIONS, ignore_eos=True, skip_special_tokens=False, max_tokens=3)["choices"][0]["text"]
    hidden = ask(engine, COMPLETIONS, ignore_eos=True, max_tokens=3)["choices"][0]["text"]
    assert shown == hidden[0] + EOS + hidden[1]


def test_api_14_priority_salt_and_request_id_are_used():
    engine = FakeEngine(script=[65])
    answer = ask(engine, COMPLETIONS, priority=-3, cache_salt="mine", request_id="abc")
    assert answer["id"] == "cmpl-abc"
    assert engine.calls[0].priority == -3
    ask(engine, COMPLETIONS)
    assert engine.calls[0].salt != engine.calls[1].salt


def test_api_14_an_empty_cache_salt_is_a_400():
    response = Client.of(FakeEngine()).post(COMPLETIONS, {"prompt": "x", "cache_salt": ""})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "cache_salt")


def test_api_14_a_template_of_one_s_own_gets_variables_and_documents():
    engine = FakeEngine(script=[65])
    names = ("messages[0].content", "mood", "documents[0].title", "reasoning_effort", "add_generation_prompt")
    template = "|".join("{{ " + name + " }}" for name in names)
    fields = {"chat_template_kwargs": {"mood": "calm"}, "documents": [{"title": "A"}], "reasoning_effort": "low"}
    ask(engine, CHAT, chat_template=template, add_generation_prompt=False, **fields)
    assert engine.tokenizer.decode(engine.calls[0].prompt_ids) == "hi|calm|A|low|False"


def test_api_14_continue_final_message_leaves_the_turn_open():
    engine = FakeEngine(script=[65])
    messages = [*USER, {"role": "assistant", "content": "I think"}]
    body = {"messages": messages, "max_tokens": 1, "continue_final_message": True, "add_generation_prompt": False}
    assert Client.of(engine).post(CHAT, body).status_code == 200
    assert engine.tokenizer.decode(engine.calls[0].prompt_ids, skip_special_tokens=False).endswith("I think")
    both = {**body, "add_generation_prompt": True}
    response = Client.of(engine).post(CHAT, both)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "continue_final_message")


@pytest.mark.parametrize(
    "constraint",
    [
        {"json": {"type": "integer"}},
        {"regex": "[0-9]+"},
        {"choice": ["a", "b"]},
        {"grammar": 'start: "a"'},
        {"json_object": True},
    ],
    ids=lambda constraint: next(iter(constraint)),
)
def test_api_14_structured_outputs_become_a_grammar(constraint: dict[str, Any]):
    engine = FakeEngine(script=[65])
    ask(engine, COMPLETIONS, structured_outputs=constraint)
    assert engine.calls[0].params.grammar is not None


def test_api_14_bad_words_reach_the_engine():
    engine = FakeEngine(script=HELLO)
    ask(engine, COMPLETIONS)
    ask(engine, COMPLETIONS, bad_words=["hello"])
    plain, with_bad_words = (call.params for call in engine.calls)
    assert with_bad_words != plain
