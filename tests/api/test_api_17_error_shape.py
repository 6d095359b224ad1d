"""Errors have one shape, code is the status; an unknown model is a 404, no model the served one."""

import pytest

from fakes import Client, FakeEngine

BODY = {"prompt": "x", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/completions", {}, 400),
        ("POST", "/v1/chat/completions", {"messages": []}, 400),
        ("POST", "/v1/completions", {**BODY, "model": "X"}, 404),
        ("GET", "/v1/models/X", None, 404),
        ("GET", "/nowhere", None, 404),
        ("GET", "/v1/completions", None, 405),
        ("POST", "/tokenize", {}, 400),
    ],
)
def test_api_17_every_error_has_the_shape(method: str, path: str, body: object, status: int):
    response = Client.of(FakeEngine()).request(method, path, json=body)
    assert response.status_code == status
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == status
    assert error["message"] and error["type"]


@pytest.mark.parametrize("url", ["/v1/completions", "/v1/chat/completions"])
def test_api_17_the_model_is_known_or_a_404(url: str):
    client = Client.of(FakeEngine())
    response = client.post(url, {**BODY, "model": "X"})
    assert response.status_code == 404
    assert response.json()["error"]["message"] == "The model `X` does not exist."
    assert client.post(url, {**BODY, "model": ""}).json()["model"] == "tiny"
