"""Log probabilities of prompts: echoed before the output, and in vLLM's shape. What an evaluation harness reads."""

from typing import Any

import pytest

from fakes import BOS, EOS, Client, FakeEngine

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def scripted(text: str, **options: Any) -> tuple[FakeEngine, Client]:
    engine = FakeEngine(**options)
    engine.script = engine.ids(text)
    return engine, Client.of(engine)


def echo(client: Client, prompt: object, **fields: object) -> dict[str, Any]:
    body = {"prompt": prompt, "echo": True, "logprobs": 1, "temperature": 0, "max_tokens": 5, **fields}
    response = client.post(COMPLETIONS, body)
    assert response.status_code == 200, response.text
    return response.json()


def assert_aligned(choice: dict[str, Any], num_tokens: int) -> None:
    """As many entries as tokens, only the first logprob null, and tokens that stand in the text where they say."""
    shape, text = choice["logprobs"], choice["text"]
    assert [len(shape[name]) for name in LISTS] == [num_tokens] * 4
    assert shape["token_logprobs"][0] is None
    assert shape["top_logprobs"][0] is None
    assert all(isinstance(value, float) for value in shape["token_logprobs"][1:])
    for token, offset in zip(shape["tokens"], shape["text_offset"], strict=True):
        assert text.startswith(token, offset)
    assert "".join(shape["tokens"]) == text


@pytest.mark.parametrize("logprobs", [0, 1, 5])
def test_the_prompts_tokens_come_before_those_of_the_output(logprobs: int):
    engine, client = scripted("hello world")
    choice = echo(client, "\n1. hello", logprobs=logprobs)["choices"][0]
    num_prompt = len(engine.ids("\n1. hello"))
    assert choice["text"] == "\n1. hellohello world"[: len(choice["text"])]
    assert_aligned(choice, num_prompt + 5)
    assert all(logprobs <= len(top) <= logprobs + 1 for top in choice["logprobs"]["top_logprobs"][1:])
    assert engine.calls[0].params.prompt_logprobs == logprobs


def test_a_prompt_alone_is_scored():
    engine, client = scripted("unused")
    answer = echo(client, "\nhello w", max_tokens=0)
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("\nhello w", "length")
    assert_aligned(choice, len(engine.ids("\nhello w")))
    assert answer["usage"]["completion_tokens"] == 0


def test_a_prompt_that_fills_the_context_is_scored():
    _, client = scripted("unused")
    choice = echo(client, [1] * 2048, max_tokens=0)["choices"][0]
    assert_aligned(choice, 2048)


def test_every_generated_token_has_an_entry_also_one_that_is_not_in_the_text():
    """A harness takes off the last entry as the one token that it let the model generate."""
    engine, client = scripted("")
    for fields in ({"max_tokens": 1}, {"max_tokens": 5, "stop_token_ids": engine.ids("x")}):
        choice = echo(client, "hello", **fields)["choices"][0]
        assert choice["text"] == "hello"
        assert_aligned(choice, 2)
        assert choice["logprobs"]["tokens"] == ["hello", ""]
    engine.script = engine.ids("ax")
    choice = echo(client, "hello", stop_token_ids=engine.ids("x"))["choices"][0]
    assert choice["text"] == "helloa"
    assert_aligned(choice, 3)
    engine.script = engine.ids("abDEF")
    choice = echo(client, "hello", stop=["bDE"])["choices"][0]
    assert choice["text"] == "helloa"
    assert [len(choice["logprobs"][name]) for name in LISTS] == [4] * 4


def test_special_tokens_have_a_name_where_they_are_in_the_text():
    engine, client = scripted("a")
    prompt = f"{BOS}hello"
    assert_aligned(echo(client, prompt)["choices"][0], 4)
    ids = [*engine.ids(prompt)]
    hidden = echo(client, ids)["choices"][0]
    assert hidden["text"] == "helloa"
    assert hidden["logprobs"]["tokens"] == ["", "hello", "a", ""]
    assert_aligned(hidden, 4)
    shown = echo(client, ids, skip_special_tokens=False)["choices"][0]
    assert shown["text"] == f"{prompt}a"
    assert_aligned(shown, 4)
    named = echo(client, ids, return_tokens_as_token_ids=True)["choices"][0]["logprobs"]["tokens"]
    assert named == [f"token_id:{token}" for token in (*ids, *engine.ids("a"), *engine.ids(EOS))]


@pytest.mark.parametrize("size", [1, 3])
def test_streamed_echo_equals_the_whole_one(size: int):
    _, client = scripted("hello é w", num_tokens_per_delta=size)
    body = {"prompt": ["\nhello wide open", "w"], "n": 2, "echo": True, "logprobs": 2, "max_tokens": 4}
    whole = client.post(COMPLETIONS, body).json()["choices"]
    chunks = [event["choices"][0] for event in client.events(COMPLETIONS, body)]
    for choice in whole:
        own = [chunk for chunk in chunks if chunk["index"] == choice["index"]]
        assert "".join(chunk["text"] for chunk in own) == choice["text"]
        for name in LISTS:
            assert [entry for chunk in own for entry in chunk["logprobs"][name]] == choice["logprobs"][name]


def test_choices_of_a_prompt_share_what_is_computed_of_it():
    engine, client = scripted("ab")
    body = {"prompt": ["hello w", "hi"], "n": 2, "echo": True, "logprobs": 1, "temperature": 1}
    choices = client.post(COMPLETIONS, body).json()["choices"]
    assert [call.params.prompt_logprobs for call in engine.calls] == [1, None, 1, None]
    assert choices[0]["logprobs"] == choices[1]["logprobs"]
    assert choices[2]["logprobs"]["tokens"][:2] == ["h", "i"]


def test_prompt_logprobs_have_the_token_and_the_likeliest_by_id():
    engine, client = scripted("a")
    prompt = engine.ids("hello w")
    choice = client.post(COMPLETIONS, {"prompt": prompt, "prompt_logprobs": 2}).json()["choices"][0]
    token = prompt[1]
    assert choice["logprobs"] is None
    assert choice["prompt_logprobs"] == [
        None,
        {
            str(token): {"logprob": -0.5, "rank": 2, "decoded_token": " w"},
            str((token + 1) % 256): {"logprob": -0.25, "rank": 1, "decoded_token": engine.tokenizer.decode([8])},
        },
    ]
    zero = client.post(COMPLETIONS, {"prompt": prompt, "prompt_logprobs": 0}).json()["choices"][0]
    assert zero["prompt_logprobs"] == [None, {str(token): {"logprob": -0.5, "rank": 2, "decoded_token": " w"}}]


def test_prompt_logprobs_of_a_chat_are_beside_its_choices():
    engine, client = scripted("a")
    body = {"messages": [{"role": "user", "content": "hi"}], "prompt_logprobs": 1, "n": 2}
    answer = client.post(CHAT, body).json()
    ids = engine.calls[0].prompt_ids
    first, *rest = answer["prompt_logprobs"]
    assert first is None
    assert [next(iter(entry)) for entry in rest] == [str(token) for token in ids[1:]]
    assert all(len(entry) == 2 for entry in rest)
    assert "prompt_logprobs" not in answer["choices"][0]


def test_an_impossible_token_is_written_as_a_number():
    class Impossible(FakeEngine):
        def _logprobs(self, ids, params):
            entries = super()._logprobs(ids, params)
            return entries and tuple(type(entry)(entry.token_id, float("-inf"), 9, ()) for entry in entries)

    client = Client.of(Impossible())
    answer = client.post(COMPLETIONS, {"prompt": [1, 2], "prompt_logprobs": 0, "echo": True, "logprobs": 0}).json()
    assert answer["choices"][0]["prompt_logprobs"][1]["2"]["logprob"] == -9999.0
    assert answer["choices"][0]["logprobs"]["token_logprobs"][1] == -9999.0


def test_echo_and_prompt_logprobs_each_show_their_own_count():
    engine, client = scripted("a")
    body = {"prompt": "hello w", "prompt_logprobs": 1, "echo": True, "logprobs": 4}
    choice = client.post(COMPLETIONS, body).json()["choices"][0]
    assert engine.calls[0].params.prompt_logprobs == 4
    assert len(choice["logprobs"]["top_logprobs"][1]) == 4
    assert len(choice["prompt_logprobs"][1]) == 2
    body = {"prompt": "hello w", "prompt_logprobs": 4, "echo": True, "logprobs": 1}
    choice = client.post(COMPLETIONS, body).json()["choices"][0]
    assert len(choice["logprobs"]["top_logprobs"][1]) == 2
    assert len(choice["prompt_logprobs"][1]) == 4
