"""Max_tokens above the context and prompts that do not fit are 400s; otherwise max_tokens is clamped."""

import pytest

from fakes import Client, FakeEngine

URL = "/v1/completions"


def test_api_19_max_tokens_above_the_context_is_a_400():
    response = Client.of(FakeEngine()).post(URL, {"prompt": "x", "max_tokens": 2049})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "max_tokens")


@pytest.mark.parametrize("num_tokens", [2048, 2049, 9000])
def test_api_19_a_too_long_prompt_is_a_400_in_these_words(num_tokens: int):
    response = Client.of(FakeEngine()).post(URL, {"prompt": [65] * num_tokens})
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert message.startswith("This model's maximum context length is 2048 tokens")
    assert str(num_tokens) in message


def test_api_19_max_tokens_is_clamped_to_what_is_left():
    answer = Client.of(FakeEngine()).post(URL, {"prompt": [65] * 2000, "max_tokens": 2000}).json()
    assert answer["usage"]["completion_tokens"] == 48
