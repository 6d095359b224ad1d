"""The embedded model under constraints, through the HTTP application: every answer that finishes obeys."""

import asyncio
import json
import re
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import httpx
import jsonschema
import pytest

from pelton.config import EngineConfig
from pelton.engine.client import AsyncEngine
from pelton.engine.host import ProcessHost
from pelton.http.app import create_app

from fakes import parse_events

T = TypeVar("T")
SECONDS = 60.0
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Describe a cat named Mia, as JSON."}]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "größe": {"type": "number", "exclusiveMinimum": 0, "maximum": 100, "multipleOf": 0.5},
        "kind": {"enum": ["cat", "🐈", None]},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{1,6}$"}, "minItems": 1, "maxItems": 3},
        "friend": {"anyOf": [{"$ref": "#/$defs/friend"}, {"type": "null"}]},
    },
    "required": ["name", "größe", "kind", "tags", "friend"],
    "additionalProperties": False,
    "$defs": {
        "friend": {
            "type": "object",
            "properties": {"id": {"type": "integer", "minimum": 1, "maximum": 999}, "friend": {"$ref": "#/$defs/end"}},
            "required": ["id", "friend"],
            "additionalProperties": False,
        },
        "end": {"anyOf": [{"$ref": "#/$defs/friend"}, {"const": "nobody"}]},
    },
}
ADDITIONAL = [None, True, False, {"type": "integer", "minimum": 0, "maximum": 9}]


class App:
    """An app over an engine with the embedded model, in an event loop of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        config = EngineConfig(max_model_len=1024, num_threads=1, served_model_name="tiny")
        self._engine = self._run(AsyncEngine.start(config, ProcessHost()))
        transport = httpx.ASGITransport(app=create_app(self._engine), raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://test", timeout=SECONDS)

    def post(self, url: str, body: dict[str, Any]) -> httpx.Response:
        return self._run(self._client.post(url, json=body))

    def post_all(self, url: str, bodies: list[dict[str, Any]]) -> list[httpx.Response]:
        async def together() -> list[httpx.Response]:
            return await asyncio.gather(*(self._client.post(url, json=body) for body in bodies))

        return self._run(together())

    def close(self) -> None:
        self._run(self._client.aclose())
        self._run(self._engine.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(SECONDS)


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    app = App()
    yield app
    app.close()


def response_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def chosen_text(response: httpx.Response) -> tuple[str, str]:
    """Text and finish reason of the only choice, of either endpoint."""
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    return choice["text"] if "text" in choice else choice["message"]["content"], choice["finish_reason"]


def test_jsn_01_finished_json_validates_at_any_temperature(app: App):
    fields = {"messages": MESSAGES, "max_tokens": 200, "temperature": 1.2, "response_format": response_format(PERSON)}
    responses = app.post_all(CHAT, [{**fields, "seed": seed} for seed in range(20)])
    num_finished = 0
    for response in responses:
        text, reason = chosen_text(response)
        assert not re.search(r"\s\s|\s$|^\s", without_strings(text)), text  # no white space to pad with
        if reason == "stop":
            num_finished += 1
            jsonschema.validate(json.loads(text), PERSON)
        else:
            assert reason == "length"
    assert num_finished >= 14


def without_strings(text: str) -> str:
    return re.sub(r'"(\\.|[^"\\])*"', '""', text)


def test_a_stream_carries_the_same_json(app: App):
    body = {"messages": MESSAGES, "max_tokens": 200, "temperature": 0, "response_format": response_format(PERSON)}
    text, reason = chosen_text(app.post(CHAT, body))
    events = parse_events(app.post(CHAT, {**body, "stream": True}))
    assert "".join(event["choices"][0]["delta"].get("content") or "" for event in events) == text
    assert events[-1]["choices"][0]["finish_reason"] == reason == "stop"
    jsonschema.validate(json.loads(text), PERSON)


@pytest.mark.parametrize("additional", ADDITIONAL, ids=["omitted", "true", "false", "schema"])
def test_jsn_01_the_three_forms_of_additional_properties_hold(app: App, additional: object):
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    if additional is not None:
        schema["additionalProperties"] = additional
    fields = {"prompt": "JSON:", "max_tokens": 60, "temperature": 1.2, "structured_outputs": {"json": schema}}
    for response in app.post_all(COMPLETIONS, [{**fields, "seed": seed} for seed in range(5)]):
        text, reason = chosen_text(response)
        if reason == "stop":
            jsonschema.validate(json.loads(text), schema)


def test_jsn_01_output_cut_by_max_tokens_is_a_prefix(app: App):
    body = {"messages": MESSAGES, "temperature": 0, "response_format": response_format(PERSON)}
    whole, _ = chosen_text(app.post(CHAT, {**body, "max_tokens": 200}))
    for max_tokens in (1, 5, 20):
        text, reason = chosen_text(app.post(CHAT, {**body, "max_tokens": max_tokens}))
        assert reason == "length"
        assert whole.startswith(text)


@pytest.mark.parametrize("extra", [{}, {"stream": True}, {"logprobs": 2}], ids=["whole", "streamed", "logprobs"])
@pytest.mark.parametrize("regex", [r"(\d{3}-){2}\d{4}", "[äöü🐈]{3}, .{1,5}!"], ids=["telephone", "non-ascii"])
def test_jsn_05_text_matches_the_whole_expression(app: App, regex: str, extra: dict[str, Any]):
    body = {
        "prompt": "Call me:",
        "max_tokens": 60,
        "temperature": 1.0,
        "seed": 3,
        "structured_outputs": {"regex": regex},
    }
    response = app.post(COMPLETIONS, {**body, **extra})
    if extra.get("stream"):
        choices = [event["choices"][0] for event in parse_events(response)]
        text, reason = "".join(choice["text"] for choice in choices), choices[-1]["finish_reason"]
    else:
        text, reason = chosen_text(response)
    assert reason == "stop"
    assert re.fullmatch(regex, text), text
    assert "\ufffd" not in text


def test_jsn_05_every_choice_can_be_reached(app: App):
    assert texts_of_choice(app, ["🐈", "🐕"], 12) == {"🐈", "🐕"}
    assert texts_of_choice(app, ["a", "ab"], 40) == {"a", "ab"}


def texts_of_choice(app: App, choices: list[str], num_seeds: int) -> set[str]:
    fields = {"prompt": "x y a b a", "max_tokens": 10, "temperature": 2.0, "structured_outputs": {"choice": choices}}
    responses = app.post_all(COMPLETIONS, [{**fields, "seed": seed} for seed in range(num_seeds)])
    answers = [chosen_text(response) for response in responses]
    assert {reason for _, reason in answers} == {"stop"}
    return {text for text, _ in answers}


def test_a_grammar_and_a_structural_tag_hold(app: App):
    body = {"prompt": "2 + 2 =", "max_tokens": 40, "temperature": 1.0, "seed": 1}
    grammar = 'root ::= term (" + " term)+\nterm ::= [0-9]'
    text, reason = chosen_text(app.post(COMPLETIONS, {**body, "structured_outputs": {"grammar": grammar}}))
    assert reason == "length" or re.fullmatch(r"\d( \+ \d)+", text)
    assert re.match(r"\d( \+ \d)*", text)
    tag = {"structures": [{"begin": "<f>", "schema": {"const": 7}, "end": "</f>"}], "triggers": ["<f>"]}
    fields = {"structured_outputs": {"structural_tag": tag}, "prompt": "<f>7</f><f>7</f><f>7</f>", "max_tokens": 60}
    text, _ = chosen_text(app.post(COMPLETIONS, {**body, **fields}))
    assert all("7</f>".startswith(part[:5]) for part in text.split("<f>")[1:]), text


def test_a_free_request_beside_constrained_ones_is_the_same(app: App):
    canary = {"prompt": "The capital of France is", "max_tokens": 12, "temperature": 0}
    alone = chosen_text(app.post(COMPLETIONS, canary))
    constrained = [{"prompt": "JSON:", "max_tokens": 40, "guided_json": PERSON, "seed": seed} for seed in range(4)]
    together = app.post_all(COMPLETIONS, [canary, *constrained, canary])
    assert [chosen_text(together[0]), chosen_text(together[-1])] == [alone, alone]
