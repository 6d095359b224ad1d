"""What is not valid is a 400 that names the field, the content type or the token id."""

import pytest

from fakes import Client, FakeEngine

SIZE = FakeEngine().tokenizer.vocab_size


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_api_18_another_content_type_is_a_400(content_type: str):
    headers = {"content-type": content_type}
    response = Client.of(FakeEngine()).request("POST", "/v1/completions", content=b'{"prompt": "x"}', headers=headers)
    assert response.status_code == 400
    assert "application/json" in response.json()["error"]["message"]


@pytest.mark.parametrize("prompt", ["", [], [[]], [""]])
def test_api_18_an_empty_prompt_is_a_400(prompt: object):
    response = Client.of(FakeEngine()).post("/v1/completions", {"prompt": prompt})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt")


@pytest.mark.parametrize("token", [SIZE, -1, 2**31, 2**63 - 1])
@pytest.mark.parametrize("field", ["prompt", "stop_token_ids", "allowed_token_ids"])
def test_api_18_a_token_out_of_vocabulary_is_named(field: str, token: int):
    response = Client.of(FakeEngine()).post("/v1/completions", {"prompt": [1], field: [1, token]})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, field)
    assert str(token) in error["message"]


@pytest.mark.parametrize(
    ("field", "value"), [("temperature", "hot"), ("n", 1.5), ("stream", "yes"), ("stop", 7), ("logit_bias", [1])]
)
def test_api_18_a_field_of_another_type_is_named(field: str, value: object):
    response = Client.of(FakeEngine()).post("/v1/completions", {"prompt": "x", field: value})
    assert (response.status_code, response.json()["error"]["param"]) == (400, field)
