"""Several choices in one stream keep apart, and count as they do unstreamed.

Reported: choices without their own role chunk, content after a choice's finish, usage that counts the prompt n times
or one choice only (vllm#9475, vllm#8625).
"""

from typing import Any

import pytest

from canary import Canary
from fakes import parse_events

pytestmark = pytest.mark.e2e

URL = "/v1/chat/completions"
BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Name a colour and say why you like it."}],
    "n": 3,
    "temperature": 0.8,
    "seed": 7,
    "max_tokens": 20,
}


@pytest.mark.parametrize("stop", [None, [" the", ".", " and"]])
def test_str_07_streamed_choices_equal_the_whole_ones(canary: Canary, stop: list[str] | None):
    body = BODY if stop is None else {**BODY, "stop": stop}
    whole = canary.client.post(URL, json=body).json()
    response = canary.client.post(URL, json={**body, "stream": True, "stream_options": {"include_usage": True}})
    *chunks, last = parse_events(response)
    assert len(whole["choices"]) == 3
    num_events = []
    for expected in whole["choices"]:
        choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == expected["index"]]
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        assert all("role" not in choice["delta"] for choice in choices[1:])
        assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
        assert choices[-1]["finish_reason"] == expected["finish_reason"]
        assert "".join(choice["delta"].get("content", "") for choice in choices) == expected["message"]["content"]
        num_events.append(len(choices))
    assert {key: value for key, value in last["usage"].items() if key != "prompt_tokens_details"} == {
        key: value for key, value in whole["usage"].items() if key != "prompt_tokens_details"
    }
    assert len({choice["message"]["content"] for choice in whole["choices"]}) > 1
    if stop is not None:
        assert len(set(num_events)) > 1, "the choices were to end at different steps"


def test_str_07_the_prompt_counts_once_and_the_completions_are_summed(canary: Canary):
    one = canary.client.post(URL, json={**BODY, "n": 1, "max_tokens": 5}).json()["usage"]
    whole = canary.client.post(URL, json={**BODY, "max_tokens": 5, "return_token_ids": True}).json()
    assert whole["usage"]["prompt_tokens"] == one["prompt_tokens"]
    assert whole["usage"]["completion_tokens"] == sum(len(choice["token_ids"]) for choice in whole["choices"])
