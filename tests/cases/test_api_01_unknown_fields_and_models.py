"""A field that the server does not know is named in the answer, and a model that it does not know is never another one.

Reported: typing errors in field names that go unnoticed, and a default model that answers for every name
(vllm#10463, vllm#11363, llama.cpp#15168, vllm#18372). Unknown fields are accepted, as clients of every version expect;
the header X-Pelton-Ignored-Fields lists them.
"""

from typing import Any

import pytest

from fakes import Client, FakeEngine

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
BODIES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "hi"},
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
}
ERROR_FIELDS = {"message", "type", "param", "code"}


@pytest.fixture
def client() -> Client:
    return Client.of(FakeEngine(script=FakeEngine().ids("hello")))


@pytest.mark.parametrize("url", BODIES)
@pytest.mark.parametrize("stream", [False, True])
def test_api_01_unknown_fields_are_named_in_a_header(client: Client, url: str, stream: bool):
    unknown = {"temprature": 0.1, "max_token": 3, "stream_options": {"include_usage": True, "usage": 1}}
    if not stream:
        del unknown["stream_options"]
    response = client.post(url, {**BODIES[url], **unknown, "stream": stream})
    assert response.status_code == 200
    expected = ["max_token", "stream_options.usage", "temprature"] if stream else ["max_token", "temprature"]
    assert sorted(response.headers["x-pelton-ignored-fields"].split(", ")) == expected


@pytest.mark.parametrize("url", BODIES)
def test_api_01_known_fields_need_no_header(client: Client, url: str):
    body = {**BODIES[url], "temperature": 0.5, "stream": True, "stream_options": {"include_usage": True}}
    assert "x-pelton-ignored-fields" not in client.post(url, body).headers


@pytest.mark.parametrize("name", ["a\r\nSet-Cookie: x", "龜", "", "x" * 5000])
def test_api_01_no_name_can_break_the_header(client: Client, name: str):
    response = client.post(COMPLETIONS, {"prompt": "hi", name: 1, "known_by_nobody": 2})
    assert response.status_code == 200
    header = response.headers["x-pelton-ignored-fields"]
    assert header.endswith("known_by_nobody")
    assert header.isascii() and header.isprintable() and len(header) < 1100
    assert "set-cookie" not in response.headers


def test_api_01_a_flood_of_unknown_fields_is_listed_in_part(client: Client):
    body = {"prompt": "hi"} | {f"unknown_{index}": 1 for index in range(10_000)}
    response = client.post(COMPLETIONS, body)
    assert response.status_code == 200
    assert len(response.headers["x-pelton-ignored-fields"]) < 2000


@pytest.mark.parametrize("url", BODIES)
@pytest.mark.parametrize("model", ["gpt-4", "Tiny", "TINY", " tiny", "tiny ", "no/such/adapter"])
def test_api_01_an_unknown_model_is_a_404_in_the_error_shape(client: Client, url: str, model: str):
    response = client.post(url, {**BODIES[url], "model": model})
    assert response.status_code == 404
    error = response.json()["error"]
    assert set(error) == ERROR_FIELDS
    assert (error["code"], error["param"], error["type"]) == (404, "model", "NotFoundError")
    assert error["message"] == f"The model `{model}` does not exist."


@pytest.mark.parametrize("url", BODIES)
@pytest.mark.parametrize("fields", [{}, {"model": None}, {"model": ""}, {"model": "tiny"}])
def test_api_01_no_name_means_the_served_model(client: Client, url: str, fields: dict[str, Any]):
    response = client.post(url, {**BODIES[url], **fields})
    assert response.status_code == 200
    assert response.json()["model"] == "tiny"


def test_api_01_only_the_served_model_is_listed(client: Client):
    client.post(COMPLETIONS, {"prompt": "hi", "model": "gpt-4"})
    assert [card["id"] for card in client.get("/v1/models").json()["data"]] == ["tiny"]
