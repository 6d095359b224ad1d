"""max_tokens from 1 to beyond every integer type, and prompts around the context's length.

Reported: a crash or an endless wait for huge max_tokens, KV reserved for what was asked instead of what is used
(vllm#33418, vllm#6707), and prompts that are cut at the front without a word (ollama#4967, ollama#17889,
ollama#17427). The rules: more than the context is a 400 that names context, prompt and request; less than that is
clamped to what the prompt leaves; an overlong prompt is a 400 and never cut.
"""

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from live import complete
from pelton.config import EngineConfig
from pelton.types import SamplingParams

from canary import Canary
from fakes import EOS, Client, FakeEngine, until
from scripted import scripted_engine

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
EIGHT = {"prompt": [65, 66, 67, 68, 69, 70, 71, 72]}


def client_of(**options: Any) -> tuple[FakeEngine, Client]:
    engine = FakeEngine(config=EngineConfig(max_model_len=2048, served_model_name="tiny"), **options)
    return engine, Client.of(engine)


def test_lim_01_one_is_one_token():
    _, client = client_of(script=[65, 66, 67])
    answer = client.post(COMPLETIONS, {**EIGHT, "max_tokens": 1}).json()
    assert (answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]) == ("length", 1)


@pytest.mark.parametrize("max_tokens", [2041, 2045, 2048])
def test_lim_01_what_the_context_could_hold_is_clamped_to_what_the_prompt_leaves(max_tokens: int):
    engine, client = client_of()
    answer = client.post(COMPLETIONS, {**EIGHT, "max_tokens": max_tokens}).json()
    assert engine.calls[0].params.max_tokens == 2040
    assert answer["usage"] == {
        "prompt_tokens": 8,
        "completion_tokens": 2040,
        "total_tokens": 2048,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("fields", [{}, {"max_tokens": None}])
def test_lim_01_without_a_limit_a_chat_runs_to_its_end(fields: dict[str, Any]):
    _, client = client_of(script=[65] * 3000)
    body = {"messages": [{"role": "user", "content": "hi"}], **fields}
    answer = client.post(CHAT, body).json()
    assert answer["usage"]["total_tokens"] == 2048
    assert answer["choices"][0]["finish_reason"] == "length"
    _, client = client_of(script=[65, 66])
    assert client.post(CHAT, body).json()["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("url", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("stream", [False, True])
def test_lim_01_more_than_the_context_names_context_prompt_and_request(url: str, stream: bool):
    engine, client = client_of()
    body = EIGHT if url == COMPLETIONS else {"messages": [{"role": "user", "content": "hi"}]}
    response = client.post(url, {**body, "max_tokens": 2**31 - 1, "stream": stream})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "max_tokens"
    num_prompt_tokens = 8 if url == COMPLETIONS else len(client_prompt(body))
    assert all(str(number) in error["message"] for number in (2**31 - 1, 2048, num_prompt_tokens))
    assert not engine.calls


def client_prompt(body: dict[str, Any]) -> list[int]:
    return Client.of(FakeEngine()).post("/tokenize", body).json()["tokens"]


@pytest.mark.parametrize("url", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("number", ["9223372036854775808", "2147483648", "-1", "0", "1.5", "1e400", '"5"', "true"])
def test_lim_01_what_is_no_count_is_a_400_that_names_the_field(url: str, number: str):
    _, client = client_of()
    body = f'{{"prompt": "hi", "messages": [{{"role": "user", "content": "hi"}}], "max_tokens": {number}}}'
    headers = {"content-type": "application/json"}
    response = client.request("POST", url, content=body, headers=headers)
    assert response.status_code == 400
    assert response.json()["error"]["message"]
    if number != "1e400":  # no JSON number of any type
        assert response.json()["error"]["param"] == "max_tokens"


def test_lim_01_admission_does_not_reserve_what_was_asked_for():
    """Ten requests that may each become as long as the whole pool run side by side."""
    fake = FakeEngine()
    info = replace(fake.info, eos_token_ids=tuple(fake.ids(EOS)))

    async def main() -> None:
        engine, _ = await scripted_engine(
            fake.tokenizer,
            info,
            lambda prompt: [65],
            before_step=lambda plan: time.sleep(0.002),
            num_pages=64,
            max_model_len=1024,
            page_size=16,
        )
        params = SamplingParams(max_tokens=1016)
        aborts = [engine.submit([65] * 8, params, lambda delta: None) for _ in range(10)]
        await until(lambda: engine.stats.num_running == 10)
        assert engine.stats.num_waiting == engine.stats.num_preemptions == 0
        for abort in aborts:
            abort()
        await until(lambda: engine.stats.num_used_pages == 0)
        await engine.stop()

    asyncio.run(main())


@pytest.mark.parametrize("url", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("num_tokens", [2048, 2049, 5000, 400_000])
def test_lim_01_an_overlong_prompt_is_refused_with_limit_and_count(url: str, num_tokens: int):
    engine, client = client_of(script=[65])
    text = "MARKER" + "x" * (num_tokens - 6)
    body: dict[str, Any] = {"prompt": text} if url == COMPLETIONS else {"messages": [{"role": "user", "content": text}]}
    response = client.post(url, body)
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert "2048" in message
    count = num_tokens if url == COMPLETIONS else len(client_prompt(body))
    assert str(count) in message or "at least" in message
    assert not engine.calls


def test_lim_01_the_usable_length_is_the_reported_one():
    engine, client = client_of(script=[65])
    limit = client.get("/v1/models").json()["data"][0]["max_model_len"]
    answer = client.post(COMPLETIONS, {"prompt": "x" * (limit - 1)}).json()
    assert answer["usage"] == {
        "prompt_tokens": limit - 1,
        "completion_tokens": 1,
        "total_tokens": limit,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert engine.calls[0].prompt_ids == tuple(engine.ids("x") * (limit - 1))


@pytest.mark.e2e
def test_lim_01_a_real_engine_takes_the_reported_length_and_no_token_more(canary: Canary):
    assert complete(canary, prompt=[30] * 2047, max_tokens=1)["usage"]["total_tokens"] == 2048
    assert canary.client.post(COMPLETIONS, json={"prompt": [30] * 2048, "max_tokens": 1}).status_code == 400
    for number in (2**31 - 1, -1, 1.5):
        assert canary.client.post(COMPLETIONS, json={"prompt": "hi", "max_tokens": number}).status_code == 400
    canary.check()
