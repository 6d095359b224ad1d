"""What clients of OpenAI-compatible servers rely on in completions and chat, a test for each numbered behaviour."""

from typing import Any

import pytest

from fakes import Client, FakeEngine

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
CHAT_BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
BODIES: dict[str, dict[str, Any]] = {COMPLETIONS: {"prompt": "hi", "max_tokens": 8}, CHAT: CHAT_BODY}


def scripted(text: str, **options: Any) -> tuple[FakeEngine, Client]:
    engine = FakeEngine(**options)
    engine.script = engine.ids(text)
    return engine, Client.of(engine)


def text_of(choice: dict[str, Any]) -> str:
    return choice["text"] if "text" in choice else choice["message"]["content"]


def refused(client: Client, url: str, **fields: object) -> str:
    response = client.post(url, {**BODIES[url], **fields})
    assert response.status_code == 400, response.text
    return response.json()["error"]["param"]


def test_01_default_length_usage_and_finish_reason():
    engine, client = scripted("x" * 3000)
    completion = client.post(COMPLETIONS, {"prompt": "hi"}).json()
    assert completion["usage"]["completion_tokens"] == 16
    assert completion["choices"][0]["finish_reason"] == "length"
    chat = client.post(CHAT, {"messages": CHAT_BODY["messages"]}).json()
    num_prompt = len(engine.calls[-1].prompt_ids)
    assert chat["usage"]["prompt_tokens"] == num_prompt
    assert chat["usage"]["completion_tokens"] == 2048 - num_prompt
    assert chat["usage"]["total_tokens"] == 2048
    _, client = scripted("x")
    assert client.post(CHAT, CHAT_BODY).json()["choices"][0]["finish_reason"] == "stop"


def test_02_four_kinds_of_prompt_and_the_index_of_a_choice():
    engine, client = scripted("a")
    for prompt, num_prompts in (("hi", 1), (["hi", "hello"], 2), ([1, 2, 3], 1), ([[1, 2], [3], [4]], 3)):
        choices = client.post(COMPLETIONS, {"prompt": prompt, "n": 3, "echo": True}).json()["choices"]
        assert [choice["index"] for choice in choices] == list(range(3 * num_prompts))
        asked = [call.prompt_ids for call in engine.calls[-3 * num_prompts :]]
        echoes = [engine.tokenizer.decode(ids) + "a" for ids in asked]
        assert [choice["text"] for choice in choices] == echoes
        assert all(len(set(asked[3 * index : 3 * index + 3])) == 1 for index in range(num_prompts))


@pytest.mark.parametrize("stream", [False, True])
def test_03_logprobs_null_0_5_and_beyond_the_limit(stream: bool):
    _, client = scripted("hello w")

    def shapes(logprobs: int | None) -> list[dict[str, Any] | None]:
        body = {"prompt": "hi", "logprobs": logprobs}
        if stream:
            return [event["choices"][0]["logprobs"] for event in client.events(COMPLETIONS, body)]
        return [client.post(COMPLETIONS, body).json()["choices"][0]["logprobs"]]

    assert set(map(str, shapes(None))) == {"None"}
    for count, sizes in ((0, {1}), (5, {5, 6})):
        tops = [top for shape in shapes(count) if shape for top in shape["top_logprobs"]]
        assert len(tops) == 2
        assert {len(top) for top in tops} <= sizes
    assert refused(client, COMPLETIONS, logprobs=21, stream=stream) == "logprobs"


@pytest.mark.parametrize("url", BODIES)
def test_04_prompt_logprobs_begin_with_null_and_cannot_be_streamed(url: str):
    engine, client = scripted("a")
    answer = client.post(url, {**BODIES[url], "prompt_logprobs": 2}).json()
    entries = answer["choices"][0]["prompt_logprobs"] if url == COMPLETIONS else answer["prompt_logprobs"]
    assert len(entries) == len(engine.calls[0].prompt_ids)
    assert entries[0] is None
    assert all(set(shown) == {"logprob", "rank", "decoded_token"} for entry in entries[1:] for shown in entry.values())
    assert refused(client, url, prompt_logprobs=2, stream=True) == "prompt_logprobs"


def test_05_echo_with_logprobs_and_scoring():
    _, client = scripted("world")
    body = {"prompt": "hello ", "echo": True, "logprobs": 1}
    choice = client.post(COMPLETIONS, body).json()["choices"][0]
    assert choice["text"] == "hello world"
    assert choice["logprobs"]["token_logprobs"][0] is None
    alone = client.post(COMPLETIONS, {**body, "max_tokens": 0}).json()["choices"][0]
    assert (alone["text"], len(alone["logprobs"]["tokens"])) == ("hello ", 2)


@pytest.mark.parametrize("url", BODIES)
def test_06_deltas_join_to_the_text_and_one_chunk_a_choice_has_the_reason(url: str):
    client = Client.of(FakeEngine())
    body = {**BODIES[url], "n": 3, "seed": 5}
    whole = client.post(url, body).json()["choices"]
    chunks = [event["choices"][0] for event in client.events(url, body)]
    for choice in whole:
        own = [chunk for chunk in chunks if chunk["index"] == choice["index"]]
        texts = [chunk["text"] if url == COMPLETIONS else chunk["delta"].get("content", "") for chunk in own]
        assert "".join(texts) == text_of(choice)
        assert [chunk["finish_reason"] for chunk in own if chunk["finish_reason"]] == [choice["finish_reason"]]


@pytest.mark.parametrize("url", BODIES)
def test_07_samples_of_a_seed_differ_and_come_again(url: str):
    client = Client.of(FakeEngine())
    body = {**BODIES[url], "n": 3, "seed": 42, "temperature": 0.7}
    texts = [text_of(choice) for choice in client.post(url, body).json()["choices"]]
    assert len(set(texts)) == 3
    assert [text_of(choice) for choice in client.post(url, body).json()["choices"]] == texts


@pytest.mark.parametrize("url", BODIES)
def test_08_beam_search_is_whole_only(url: str):
    engine = FakeEngine()
    client = Client.of(engine)
    body = {**BODIES[url], "use_beam_search": True, "n": 2}
    choices = client.post(url, body).json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1]
    assert len({text_of(choice) for choice in choices}) == 2
    assert engine.num_live == 0
    assert refused(client, url, use_beam_search=True, n=2, stream=True) == "use_beam_search"


@pytest.mark.parametrize("url", BODIES)
def test_09_truncation_and_token_ids(url: str):
    engine, client = scripted("ab")
    full = client.post(url, {**BODIES[url], "return_token_ids": True}).json()
    holder = full["choices"][0] if url == COMPLETIONS else full
    assert holder["prompt_token_ids"] == list(engine.calls[-1].prompt_ids)
    assert full["choices"][0]["token_ids"] == [*engine.ids("ab"), *engine.tokenizer.eos_token_ids]
    for side, kept in (("left", slice(-2, None)), ("right", slice(0, 2))):
        client.post(url, {**BODIES[url], "truncate_prompt_tokens": 2, "truncation_side": side})
        assert list(engine.calls[-1].prompt_ids) == holder["prompt_token_ids"][kept]
    logprobs = {"logprobs": 1} if url == COMPLETIONS else {"logprobs": True}
    shape = client.post(url, {**BODIES[url], **logprobs, "return_tokens_as_token_ids": True}).json()["choices"][0]
    tokens = shape["logprobs"]
    names = tokens["tokens"] if url == COMPLETIONS else [entry["token"] for entry in tokens["content"]]
    assert names == [f"token_id:{token}" for token in engine.ids("ab")]


def test_13_top_logprobs_of_a_chat():
    _, client = scripted("hello w")
    for count in (0, 5):
        answer = client.post(CHAT, {**CHAT_BODY, "logprobs": True, "top_logprobs": count}).json()
        content = answer["choices"][0]["logprobs"]["content"]
        assert [len(entry["top_logprobs"]) for entry in content] == [count] * 2
    assert refused(client, CHAT, top_logprobs=5) == "top_logprobs"


@pytest.mark.parametrize("url", BODIES)
def test_14_parameters_reach_the_engine(url: str):
    engine, client = scripted("a")
    fields = {
        **{"min_tokens": 2, "stop_token_ids": [7], "include_stop_str_in_output": True, "ignore_eos": True},
        **{"skip_special_tokens": False, "min_p": 0.1, "top_k": 9, "top_p": 0.5, "repetition_penalty": 1.5},
        **{"presence_penalty": 0.5, "frequency_penalty": 0.25, "temperature": 0.75, "seed": 3, "stop": ["x", "y"]},
    }
    lists = {"bad_words": ["x"], "allowed_token_ids": [1, 2], "logit_bias": {"1": 2.0}}
    other = {"priority": 4, "cache_salt": "mine", "request_id": "me", "spaces_between_special_tokens": False}
    answer = client.post(url, {**BODIES[url], **fields, **lists, **other})
    assert answer.status_code == 200, answer.text
    assert answer.json()["id"].endswith("-me")
    call = engine.calls[-1]
    expected = {**fields, "stop_token_ids": (7,), "stop": ("x", "y"), "allowed_token_ids": (1, 2)}
    assert {name: getattr(call.params, name) for name in expected} == expected
    assert call.params.logit_bias == {1: 2.0}
    assert call.params.bad_words_ids == (tuple(engine.ids("x")), tuple(engine.ids(" x")))
    assert (call.priority, call.salt.endswith(":mine")) == (4, True)
    assert refused(client, url, cache_salt="") == "cache_salt"


@pytest.mark.parametrize("url", BODIES)
def test_16_a_seed_has_64_bits(url: str):
    engine, client = scripted("a")
    for seed in (2**63, -(2**63) - 1, 10**30):
        assert refused(client, url, seed=seed) == "seed"
    for seed in (2**63 - 1, -(2**63), 0):
        assert client.post(url, {**BODIES[url], "seed": seed}).status_code == 200
        assert engine.calls[-1].params.seed == seed


@pytest.mark.parametrize("url", BODIES)
@pytest.mark.parametrize(
    ("field", "inside", "outside"),
    [
        ("temperature", [0, 2], [-0.01, 2.01]),
        ("top_p", [0.01, 1], [0, -1, 1.01]),
        ("top_k", [-1, 0, 1], [-2]),
        ("min_p", [0, 1], [-0.01, 1.01]),
        ("presence_penalty", [-2, 2], [-2.01, 2.01]),
        ("frequency_penalty", [-2, 2], [-2.01, 2.01]),
        ("repetition_penalty", [0.01, 2], [0, -1]),
        ("max_tokens", [1, 2048], [0, -1, 2049]),
        ("min_tokens", [0, 8], [-1, 9]),
        ("n", [1, 2], [0, -1]),
        ("stop", [["a"] * 4], [["a"] * 5, ["a", ""], ""]),
    ],
)
def test_20_ranges(url: str, field: str, inside: list[object], outside: list[object]):
    _, client = scripted("a")
    for value in inside:
        assert client.post(url, {**BODIES[url], field: value}).status_code == 200, value
    for value in outside:
        assert refused(client, url, **{field: value}) == field
    assert refused(client, url, n=2, temperature=0) == "n"


@pytest.mark.parametrize("url", BODIES)
def test_21_logit_bias(url: str):
    engine, client = scripted("a")
    message = client.post(url, {**BODIES[url], "logit_bias": {"266": 1, "5": 1}}).json()["error"]["message"]
    assert "266" in message
    assert "vocabulary size is 266" in message
    client.post(url, {**BODIES[url], "logit_bias": {"5": 1000, "6": -1000, "7": -3}})
    assert engine.calls[-1].params.logit_bias == {5: 100.0, 6: -100.0, 7: -3.0}


@pytest.mark.parametrize("url", BODIES)
@pytest.mark.parametrize("stream", [False, True])
def test_22_stops(url: str, stream: bool):
    engine, client = scripted("abcDEFgh", num_tokens_per_delta=2)

    def answer(**fields: object) -> tuple[str, str, object]:
        body = {**BODIES[url], **fields}
        if not stream:
            choice = client.post(url, body).json()["choices"][0]
            return text_of(choice), choice["finish_reason"], choice["stop_reason"]
        chunks = [event["choices"][0] for event in client.events(url, body)]
        texts = [chunk["text"] if url == COMPLETIONS else chunk["delta"].get("content", "") for chunk in chunks]
        return "".join(texts), chunks[-1]["finish_reason"], chunks[-1]["stop_reason"]

    (stop,) = engine.ids("b")
    assert answer(stop=["cDE"]) == ("ab", "stop", "cDE")
    assert answer(stop=["cDE"], include_stop_str_in_output=True) == ("abcDE", "stop", "cDE")
    assert answer(stop_token_ids=[stop]) == ("a", "stop", stop)
    assert answer() == ("abcDEFgh", "stop", None)
    assert answer(max_tokens=2) == ("ab", "length", None)
