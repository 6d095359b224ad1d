"""What the model's files recommend holds for requests that leave it open, on every endpoint, and for nothing else."""

from typing import Any

import pytest

from pelton.types import SamplingParams

from fakes import Client, FakeEngine

COMPLETIONS, CHAT, RESPONSES, MESSAGES = "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"
CONVERSATION = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "hi"},
    CHAT: {"messages": CONVERSATION},
    RESPONSES: {"input": "hi"},
    MESSAGES: {"messages": CONVERSATION, "max_tokens": 64},
}
DEFAULTS = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1, "max_tokens": 40}


def params_of(url: str, body: dict[str, Any], defaults: dict[str, float] | None = None) -> SamplingParams:
    engine = FakeEngine(sampling_defaults=DEFAULTS if defaults is None else defaults)
    engine.script = engine.ids("ok")
    response = Client.of(engine).post(url, {**BODIES[url], **body})
    assert response.status_code == 200, response.text
    return engine.calls[0].params


def sampling_of(params: SamplingParams) -> tuple[float, ...]:
    return params.temperature, params.top_p, params.top_k, params.min_p, params.repetition_penalty


@pytest.mark.parametrize("url", BODIES)
def test_a_request_that_says_nothing_gets_them(url: str):
    assert sampling_of(params_of(url, {})) == (0.6, 0.9, 20, 0.05, 1.1)
    assert sampling_of(params_of(url, {}, {})) == (1.0, 1.0, 0, 0.0, 1.0)


@pytest.mark.parametrize("url", BODIES)
def test_null_says_nothing_and_what_is_given_wins(url: str):
    params = params_of(url, {"temperature": None, "top_p": 1.0, "top_k": 0})
    assert sampling_of(params) == (0.6, 1.0, 0, 0.05, 1.1)


def test_values_equal_to_the_api_s_own_defaults_are_given_ones():
    own = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
    assert sampling_of(params_of(CHAT, own)) == (1.0, 1.0, -1, 0.0, 1.0)


@pytest.mark.parametrize("url", BODIES)
def test_temperature_0_stays_greedy(url: str):
    params = params_of(url, {"temperature": 0})
    assert params.temperature == 0.0
    assert params.greedy


@pytest.mark.parametrize(
    ("url", "body", "expected"),
    [
        (COMPLETIONS, {}, 16),  # as in the OpenAI API and in vLLM: the length of a completion is its own default
        (COMPLETIONS, {"max_tokens": None}, 40),
        (COMPLETIONS, {"max_tokens": 100}, 100),
        (CHAT, {}, 40),
        (CHAT, {"max_tokens": 100}, 100),
        (CHAT, {"max_completion_tokens": 100}, 100),
        (RESPONSES, {}, 40),
        (RESPONSES, {"max_output_tokens": 100}, 100),
        (MESSAGES, {}, 64),
    ],
)
def test_the_length_of_answers(url: str, body: dict[str, Any], expected: int):
    assert params_of(url, body).max_tokens == expected


@pytest.mark.parametrize("url", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("defaults", [{"temperature": 0.0}, {"top_k": 1}])
def test_several_choices_need_a_temperature_where_the_default_is_greedy(url: str, defaults: dict[str, float]):
    engine = FakeEngine(sampling_defaults=defaults)
    response = Client.of(engine).post(url, {**BODIES[url], "n": 2})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "n")
    params_of(url, {"n": 2, "temperature": 0.5, "top_k": 0}, defaults)


def test_a_beam_takes_the_length_alone():
    engine = FakeEngine(sampling_defaults=DEFAULTS | {"max_tokens": 3})  # the rest is refused where a client gives it
    response = Client.of(engine).post(CHAT, {**BODIES[CHAT], "use_beam_search": True, "n": 2})
    assert response.status_code == 200, response.text
    assert response.json()["usage"]["completion_tokens"] == 6


def test_the_response_object_shows_what_held():
    engine = FakeEngine(sampling_defaults=DEFAULTS)
    shown = Client.of(engine).post(RESPONSES, {"input": "hi"}).json()
    assert (shown["temperature"], shown["top_p"]) == (0.6, 0.9)


def test_an_embedding_is_not_sampled():
    engine = FakeEngine(sampling_defaults=DEFAULTS)
    assert Client.of(engine).post("/v1/embeddings", {"input": "hi"}).status_code == 200
    assert engine.calls[0].params == SamplingParams(max_tokens=0, pooling="last", seed=engine.calls[0].params.seed)
