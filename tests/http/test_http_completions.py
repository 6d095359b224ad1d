"""POST /v1/completions over a fake engine that emits known tokens."""

import json

import pytest

from fakes import EOS, Client, FakeEngine

URL = "/v1/completions"


def scripted(text: str, **options) -> tuple[FakeEngine, Client]:
    engine = FakeEngine(**options)
    engine.script = engine.ids(text)
    return engine, Client.of(engine)


def test_whole_answer_has_the_text_usage_and_reason():
    engine, client = scripted("hello world")
    answer = client.post(URL, {"model": "tiny", "prompt": "hi"}).json()
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["choices"] == [
        {"index": 0, "text": "hello world", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    ]
    num_completion_tokens = len(engine.ids("hello world")) + 1  # the end-of-sequence token was generated too
    assert answer["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": num_completion_tokens,
        "total_tokens": 2 + num_completion_tokens,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_default_max_tokens_is_16_and_null_means_the_rest_of_the_context():
    engine, client = scripted("x" * 40)
    answer = client.post(URL, {"prompt": "hi"}).json()
    assert answer["usage"]["completion_tokens"] == 16
    assert answer["choices"][0]["finish_reason"] == "length"
    client.post(URL, {"prompt": "hi", "max_tokens": None})
    assert engine.calls[-1].params.max_tokens == 2048 - 2


def test_max_tokens_is_clamped_to_what_the_prompt_leaves():
    engine, client = scripted("x")
    assert client.post(URL, {"prompt": [1] * 8, "max_tokens": 2045}).status_code == 200
    assert engine.calls[-1].params.max_tokens == 2040


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("hello", [[262]]),
        (["hello", "hi"], [[262], [71, 72]]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
def test_a_prompt_is_text_texts_ids_or_lists_of_ids(prompt: object, expected: list[list[int]]):
    engine, client = scripted("a")
    answer = client.post(URL, {"prompt": prompt}).json()
    assert [list(call.prompt_ids) for call in engine.calls] == expected
    assert answer["usage"]["prompt_tokens"] == sum(map(len, expected))


def test_choices_come_prompt_by_prompt_with_distinct_reproducible_samples():
    client = Client.of(FakeEngine())
    body = {"prompt": ["hello", "hi"], "n": 3, "seed": 42, "temperature": 0.8, "max_tokens": 12}
    choices = client.post(URL, body).json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(6))
    assert len({choice["text"] for choice in choices}) == 6
    assert [choice["text"] for choice in client.post(URL, body).json()["choices"]] == [c["text"] for c in choices]
    for position, prompt in enumerate(["hello", "hi"]):
        alone = client.post(URL, {**body, "prompt": prompt}).json()["choices"]
        assert [c["text"] for c in alone] == [c["text"] for c in choices[3 * position : 3 * position + 3]]


def test_samples_without_a_seed_keep_it_unset_so_that_the_engine_draws_one_each():
    engine = FakeEngine()
    texts = [c["text"] for c in Client.of(engine).post(URL, {"prompt": "a", "n": 4}).json()["choices"]]
    assert [call.params.seed for call in engine.calls] == [None] * 4
    assert len(set(texts)) == 4


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("max_tokens", [3, 4, 5, 6, 30])
def test_streamed_text_equals_the_whole_one_also_when_cut_inside_a_character(size: int, max_tokens: int):
    _, client = scripted("ok 🫠 龜 é 👩‍👩‍👧 end", num_tokens_per_delta=size)
    body = {"prompt": "hi", "max_tokens": max_tokens}
    whole = client.post(URL, body).json()["choices"][0]
    chunks = [event["choices"][0] for event in client.events(URL, body)]
    assert "".join(chunk["text"] for chunk in chunks) == whole["text"]
    reasons = [chunk["finish_reason"] for chunk in chunks]
    assert reasons[-1] == whole["finish_reason"] == "length"
    assert reasons[:-1] == [None] * (len(reasons) - 1)
    assert all("�" not in chunk["text"] for chunk in chunks[:-1])


def test_usage_is_absent_unless_asked_for():
    _, client = scripted("hello")
    for options in ({}, {"stream_options": None}, {"stream_options": {"include_usage": False}}):
        events = client.events(URL, {"prompt": "hi", **options})
        assert all(event.get("usage") is None for event in events)
        assert all(len(event["choices"]) == 1 for event in events)


def test_include_usage_adds_one_last_chunk_without_choices():
    _, client = scripted("hello world")
    body = {"prompt": "hi", "n": 2, "stream_options": {"include_usage": True}}
    *chunks, last = client.events(URL, body)
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"] == client.post(URL, {"prompt": "hi", "n": 2}).json()["usage"]
    assert last["usage"]["prompt_tokens"] == 2


def test_continuous_usage_is_on_every_chunk_and_never_falls():
    _, client = scripted("hello world")
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = client.events(URL, {"prompt": "hi", "n": 2, "stream_options": options})
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert counts[-1] == counts[-2] > 1


@pytest.mark.parametrize("size", [1, 3])
def test_no_part_of_a_stop_string_is_ever_sent(size: int):
    engine = FakeEngine(num_tokens_per_delta=size)
    engine.script = [token for part in ("DEF", "G", "HI", "J", "K") for token in engine.ids(part)]
    client = Client.of(engine)
    body = {"prompt": "letters: ABC", "stop": ["DEFGHIJ"], "temperature": 0, "logprobs": 1}
    for choices in (
        client.post(URL, body).json()["choices"],
        [event["choices"][0] for event in client.events(URL, body)],
    ):
        assert "".join(choice["text"] for choice in choices) == ""
        assert [token for choice in choices for token in choice["logprobs"]["tokens"]] == []
        assert choices[-1]["finish_reason"] == "stop"
        assert choices[-1]["stop_reason"] == "DEFGHIJ"
    included = client.post(URL, {**body, "include_stop_str_in_output": True}).json()["choices"][0]
    assert included["text"] == "DEFGHIJ"


def test_stop_reason_is_the_token_id_of_a_stop_token():
    engine, client = scripted("abc")
    stop = engine.ids("b")[0]
    choice = client.post(URL, {"prompt": "hi", "stop_token_ids": [stop]}).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("a", "stop", stop)


def test_min_tokens_and_ignore_eos_reach_the_engine():
    engine, client = scripted("a")
    body = {"prompt": "hi", "max_tokens": 5, "ignore_eos": True, "min_tokens": 2}
    choice = client.post(URL, body).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert engine.calls[-1].params.min_tokens == 2
    shown = client.post(URL, {**body, "skip_special_tokens": False}).json()["choices"][0]["text"]
    assert shown == "a" + 4 * EOS


def test_logprobs_null_zero_and_five():
    _, client = scripted("hello w")
    assert client.post(URL, {"prompt": "hi", "logprobs": None}).json()["choices"][0]["logprobs"] is None
    zero = client.post(URL, {"prompt": "hi", "logprobs": 0}).json()["choices"][0]["logprobs"]
    assert zero["tokens"] == ["hello", " w"]
    assert zero["top_logprobs"] == [{"hello": -0.5}, {" w": -0.5}]
    five = client.post(URL, {"prompt": "hi", "logprobs": 5}).json()["choices"][0]["logprobs"]
    assert all(5 <= len(top) <= 6 for top in five["top_logprobs"])
    assert five["top_logprobs"][0]["hello"] == five["token_logprobs"][0] == -0.5


@pytest.mark.parametrize("size", [1, 2, 50])
def test_text_offsets_point_at_the_tokens_streamed_or_not(size: int):
    _, client = scripted("hello é wide 🫠 end", num_tokens_per_delta=size)
    body = {"prompt": "hi", "logprobs": 2, "max_tokens": 40}
    whole = client.post(URL, body).json()["choices"][0]
    for token, offset in zip(whole["logprobs"]["tokens"], whole["logprobs"]["text_offset"], strict=True):
        assert token.startswith("bytes:") or whole["text"][offset:].startswith(token)
    chunks = [event["choices"][0]["logprobs"] for event in client.events(URL, body)]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [entry for chunk in chunks for entry in chunk[name]] == whole["logprobs"][name]


def test_parts_of_characters_and_equal_texts_keep_apart_in_top_logprobs():
    _, client = scripted("🫠")
    top = client.post(URL, {"prompt": "hi", "logprobs": 5}).json()["choices"][0]["logprobs"]["top_logprobs"]
    assert all(len(entry) == 5 for entry in top)
    as_ids = client.post(URL, {"prompt": "hi", "logprobs": 1, "return_tokens_as_token_ids": True}).json()
    assert all(token.startswith("token_id:") for token in as_ids["choices"][0]["logprobs"]["tokens"])


@pytest.mark.parametrize("prompt", ["hello ", [262, 220]])
def test_echo_puts_the_prompt_before_the_text(prompt: object):
    _, client = scripted("world")
    body = {"prompt": prompt, "echo": True, "n": 2}
    assert [c["text"] for c in client.post(URL, body).json()["choices"]] == ["hello world"] * 2
    events = client.events(URL, body)
    for index in range(2):
        texts = [e["choices"][0]["text"] for e in events if e["choices"][0]["index"] == index]
        assert "".join(texts) == "hello world"


def test_echo_without_tokens_returns_the_prompt_alone():
    engine, client = scripted("unused")
    body = {"prompt": "hello", "echo": True, "max_tokens": 0}
    answer = client.post(URL, body).json()
    assert answer["choices"][0]["text"] == "hello"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 0
    assert [e["choices"][0]["text"] for e in client.events(URL, body)] == ["hello"]
    assert engine.calls == []


@pytest.mark.parametrize(("side", "kept"), [(None, [4, 5]), ("left", [4, 5]), ("right", [1, 2])])
def test_truncation_keeps_the_asked_side(side: str | None, kept: list[int]):
    engine, client = scripted("a")
    body = {"prompt": [1, 2, 3, 4, 5], "truncate_prompt_tokens": 2, "truncation_side": side}
    assert client.post(URL, body).json()["usage"]["prompt_tokens"] == 2
    assert list(engine.calls[-1].prompt_ids) == kept


def test_truncation_makes_an_overlong_prompt_fit():
    _, client = scripted("a")
    body = {"prompt": [1] * 3000, "truncate_prompt_tokens": 100}
    assert client.post(URL, body).json()["usage"]["prompt_tokens"] == 100


def test_token_ids_are_returned_on_request():
    engine, client = scripted("hello world")
    body = {"prompt": "hi", "return_token_ids": True}
    choice = client.post(URL, body).json()["choices"][0]
    assert choice["prompt_token_ids"] == [71, 72]
    assert choice["token_ids"] == [*engine.script, engine.tokenizer.eos_token_ids[0]]
    chunks = [event["choices"][0] for event in client.events(URL, body)]
    assert [token for chunk in chunks for token in chunk["token_ids"]] == choice["token_ids"]
    assert chunks[0]["prompt_token_ids"] == [71, 72]
    assert "prompt_token_ids" not in chunks[1]


def test_logit_bias_becomes_ids_and_is_clamped():
    engine, client = scripted("a")
    client.post(URL, {"prompt": "hi", "logit_bias": {"5": 1e9, "6": -1e9, "7": 1.5}})
    assert engine.calls[-1].params.logit_bias == {5: 100.0, 6: -100.0, 7: 1.5}


def test_priority_and_request_id_are_used():
    engine, client = scripted("a")
    answer = client.post(URL, {"prompt": "hi", "priority": -3, "request_id": "mine"}).json()
    assert answer["id"] == "cmpl-mine"
    assert engine.calls[-1].priority == -3
    assert client.post(URL, {"prompt": "hi"}, headers={"X-Request-Id": "theirs"}).json()["id"] == "cmpl-theirs"


def test_prefix_cache_hits_are_in_the_usage_once_per_prompt():
    _, client = scripted("ab", num_cached_tokens=16)
    answer = client.post(URL, {"prompt": ["hello", "hi"], "n": 2}).json()
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 32}


def test_unknown_fields_are_ignored_and_nulls_are_defaults():
    _, client = scripted("a")
    body = {"prompt": "hi", "no_such_field": {"deep": [1]}, "temperature": None, "n": None, "stop": None, "model": ""}
    assert client.post(URL, body).status_code == 200


def test_a_failing_choice_ends_the_request_and_its_siblings():
    engine = FakeEngine(fail_after=0)
    response = Client.of(engine).post(URL, {"prompt": ["hello", "hi"], "n": 2})
    assert response.status_code == 500
    assert response.json()["error"] == {
        "message": "Internal server error",
        "type": "InternalServerError",
        "param": None,
        "code": 500,
    }
    assert engine.num_live == 0


def test_every_chunk_is_valid_json_with_real_characters():
    _, client = scripted("é龜")
    raw = client.post(URL, {"prompt": "hi", "stream": True}).content
    assert "龜".encode() in raw
    assert all(json.loads(line[6:]) for line in raw.split(b"\n\n")[:-2])
