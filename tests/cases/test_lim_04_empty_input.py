"""Nothing to continue from is a 400 that names the field, and one bad element fails the whole request before it runs.

Reported: an assertion in the engine, which ends it for everybody, for "" or [] as a prompt, above all with a
tokenizer that adds no BOS (vllm#7283, vllm#7632, vllm#7746, vllm#15016).
"""

from typing import Any

import pytest

from canary import Canary
from fakes import Client, FakeEngine

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
EMPTY_PROMPTS = {
    "": "prompt",
    (): "prompt",
    ("",): "prompt",
    ((),): "prompt",
    ("hello", ""): "prompt[1]",
    ((65,), ()): "prompt[1]",
    ("", "hello"): "prompt[0]",
}
USER = {"role": "user", "content": "hi"}
EMPTY_CHATS = [
    ([], "messages"),
    ([{"role": "user", "content": None}], "messages[0].content"),
    ([{"role": "user"}], "messages[0].content"),
    ([USER, {"role": "tool"}], "messages[1].content"),
    ([{}], "messages[0].role"),
    ([USER, {"role": "", "content": "x"}], "messages[1].role"),
]


def as_json(value: Any) -> Any:
    return [as_json(item) for item in value] if isinstance(value, tuple) else value


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("prompt", "param"), EMPTY_PROMPTS.items(), ids=map(str, EMPTY_PROMPTS))
def test_lim_04_an_empty_prompt_is_refused_by_name(prompt: Any, param: str, stream: bool):
    engine = FakeEngine()
    response = Client.of(engine).post(COMPLETIONS, {"prompt": as_json(prompt), "stream": stream})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert not engine.calls, "an element ran although another one cannot"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("messages", "param"), EMPTY_CHATS, ids=str)
def test_lim_04_a_chat_without_content_is_refused_by_name(messages: Any, param: str, stream: bool):
    engine = FakeEngine()
    response = Client.of(engine).post(CHAT, {"messages": messages, "stream": stream})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert not engine.calls


@pytest.mark.parametrize("message", [{"role": "user", "content": ""}, {"role": "assistant", "content": None}])
def test_lim_04_an_empty_message_runs_where_the_template_writes_something(message: dict[str, Any]):
    engine = FakeEngine(script=[65])
    answer = Client.of(engine).post(CHAT, {"messages": [message]}).json()
    assert answer["usage"]["prompt_tokens"] == len(engine.calls[0].prompt_ids) > 0


def test_lim_04_an_empty_message_is_refused_where_the_template_writes_nothing():
    engine = FakeEngine()
    body = {"messages": [{"role": "user", "content": ""}], "chat_template": "{{ messages[0].content }}"}
    response = Client.of(engine).post(CHAT, body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages"
    assert not engine.calls


@pytest.mark.e2e
def test_lim_04_a_real_engine_survives_every_variant(canary: Canary):
    for prompt in EMPTY_PROMPTS:
        assert canary.client.post(COMPLETIONS, json={"prompt": as_json(prompt)}).status_code == 400
        canary.check()
    for messages, _ in EMPTY_CHATS:
        assert canary.client.post(CHAT, json={"messages": messages}).status_code == 400
    canary.check()
