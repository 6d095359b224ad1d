"""A bad constraint is a 400 and the engine lives; what finishes under a constraint validates."""

import json

import jsonschema
import pytest

from canary import Canary
from fakes import Client, FakeEngine

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "Give me a person."}], "max_tokens": 200}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Ann", "Bo"]}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": {"json": {"type": "nothing"}}},
        {"structured_outputs": {"regex": "(["}},
        {"structured_outputs": {"grammar": "start: nowhere"}},
        {"structured_outputs": {"choice": []}},
        {"structured_outputs": {"regex": "a", "choice": ["a"]}},
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
    ],
    ids=str,
)
def test_api_23_a_bad_constraint_is_a_400(fields: dict[str, object]):
    engine = FakeEngine(script=[65])
    response = Client.of(engine).post(CHAT, {**BODY, **fields})
    assert response.status_code == 400
    assert response.json()["error"]["message"]
    assert not engine.calls


@pytest.mark.e2e
def test_api_23_what_finishes_validates_and_the_engine_lives(canary: Canary):
    response_format = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    for seed in range(3):
        body = {**BODY, "response_format": response_format, "temperature": 1.2, "seed": seed}
        response = canary.client.post(CHAT, json=body)
        assert response.status_code == 200, response.text + canary.log.read_text()[-3000:]
        choice = response.json()["choices"][0]
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)
    assert canary.client.post(CHAT, json={**BODY, "structured_outputs": {"regex": "(["}}).status_code == 400
    canary.check()
