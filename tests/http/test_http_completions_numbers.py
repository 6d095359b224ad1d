"""Every numeric field with every hostile number: an answer, or a 400 that names the field; nothing in between."""

import json
from typing import Any

import httpx
import pytest

from fakes import Client, FakeEngine

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
NUMBERS = [
    *(0, -1, 1, 2, 20, 21, 2**31 - 1, 2**31, -(2**31), 2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**30),
    *(0.0, -0.0, 0.5, 1.0, 1e-320, 1e308, -1e308, float("nan"), float("inf"), float("-inf")),
]
SHARED = {
    **{"n": (1, 128), "min_tokens": (0, 16), "top_k": (-1, 2**31 - 1), "seed": (-(2**63), 2**63 - 1)},
    **{"priority": (-(2**31), 2**31 - 1), "prompt_logprobs": (0, 20), "best_of": (1, 1)},
    **{"temperature": (0.0, 2.0), "top_p": (1e-320, 1.0), "min_p": (0.0, 1.0), "repetition_penalty": (1e-320, 1e308)},
    **{"presence_penalty": (-2.0, 2.0), "frequency_penalty": (-2.0, 2.0), "truncate_prompt_tokens": (-1, 2048)},
}
IN_COMPLETIONS = {**SHARED, "max_tokens": (1, 2048), "logprobs": (0, 20)}
IN_CHAT = {**SHARED, "max_tokens": (1, 2048), "max_completion_tokens": (1, 2048), "top_logprobs": (0, 20)}
FLOATS = {"temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"}
LISTS = {"stop_token_ids": 266, "allowed_token_ids": 266}


def post(client: Client, url: str, body: dict[str, Any]) -> httpx.Response:
    content = json.dumps(body).encode()  # NaN and Infinity as Python writes them
    return client.request("POST", url, content=content, headers={"Content-Type": "application/json"})


def is_inside(field: str, number: float, low: float, high: float) -> bool:
    if field not in FLOATS and isinstance(number, float):
        return False
    if field == "truncate_prompt_tokens" and number == 0:
        return False
    return low <= number <= high


@pytest.mark.parametrize("number", NUMBERS, ids=repr)
@pytest.mark.parametrize(
    ("url", "fields"), [(COMPLETIONS, IN_COMPLETIONS), (CHAT, IN_CHAT)], ids=["completions", "chat"]
)
def test_each_field_takes_what_is_in_range_and_refuses_the_rest(url: str, fields: dict[str, Any], number: float):
    engine = FakeEngine()
    engine.script = engine.ids("canary")
    client = Client.of(engine)
    base = {"prompt": "hi"} if url == COMPLETIONS else {"messages": MESSAGES, "logprobs": True, "max_tokens": 16}
    for field, (low, high) in fields.items():
        response = post(client, url, {**base, field: number})
        inside = is_inside(field, number, low, high)
        assert response.status_code == (200 if inside else 400), f"{field}: {response.text}"
        if not inside:
            assert response.json()["error"]["param"] == field
        assert "canary" in post(client, url, base).text
    assert engine.num_live == 0


@pytest.mark.parametrize("number", NUMBERS, ids=repr)
def test_lists_and_maps_of_numbers_are_as_strict(number: float):
    client = Client.of(FakeEngine())
    for field, size in LISTS.items():
        response = post(client, COMPLETIONS, {"prompt": "hi", field: [number]})
        is_token = isinstance(number, int) and 0 <= number < size
        assert response.status_code == (200 if is_token else 400), f"{field}: {response.text}"
    response = post(client, COMPLETIONS, {"prompt": [number]})
    assert response.status_code == (200 if isinstance(number, int) and 0 <= number < 266 else 400)
    is_finite = abs(number) <= 1e308
    assert post(client, COMPLETIONS, {"prompt": "hi", "logit_bias": {"1": number}}).status_code == (
        200 if is_finite else 400
    )


@pytest.mark.parametrize("stream", [False, True])
def test_the_limit_of_logprobs_holds_in_streams_too(stream: bool):
    client = Client.of(FakeEngine())
    body = {"prompt": "hi", "stream": stream}
    assert client.post(COMPLETIONS, {**body, "logprobs": 20}).status_code == 200
    assert client.post(COMPLETIONS, {**body, "logprobs": 21}).status_code == 400
    chat = {"messages": MESSAGES, "logprobs": True, "max_tokens": 3, "stream": stream}
    assert client.post(CHAT, {**chat, "top_logprobs": 20}).status_code == 200
    assert client.post(CHAT, {**chat, "top_logprobs": 21}).status_code == 400


def test_top_logprobs_are_exactly_as_many_as_asked_for():
    client = Client.of(FakeEngine())
    for count in (0, 1, 5, 20):
        body = {"messages": MESSAGES, "logprobs": True, "top_logprobs": count, "max_tokens": 4}
        content = client.post(CHAT, body).json()["choices"][0]["logprobs"]["content"]
        assert [len(entry["top_logprobs"]) for entry in content] == [count] * 4
        completion = client.post(COMPLETIONS, {"prompt": "hi", "logprobs": count, "max_tokens": 4}).json()
        tops = completion["choices"][0]["logprobs"]["top_logprobs"]
        assert all(count <= len(top) <= count + 1 for top in tops)


def test_more_logit_biases_than_a_few_are_fine():
    engine = FakeEngine()
    biases = {str(token): 1.0 for token in range(266)}
    assert Client.of(engine).post(COMPLETIONS, {"prompt": "hi", "logit_bias": biases}).status_code == 200
    assert engine.calls[0].params.logit_bias == dict.fromkeys(range(266), 1.0)
