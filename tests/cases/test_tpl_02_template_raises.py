"""A template that refuses the messages is a 400 with the template's own words and the message that it was at.

Reported: a 500 or an empty body when a template has no system role or wants user and assistant in turn
(EricLBuehler/mistral.rs#506, vllm#6862, mistralai/mistral-vibe#1006).
"""

from typing import Any

import pytest

from canary import Canary
from fakes import Client, FakeEngine

URL = "/v1/chat/completions"
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if message['role'] == 'user' and loop.index0 and messages[loop.index0 - 1]['role'] == 'user' %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if message['role'] == 'assistant' and message.tool_calls and loop.last %}"
    "{{ raise_exception('Not the same number of function calls and responses') }}{% endif %}"
    "{{ message['content'] }}{% endfor %}"
)
USER = {"role": "user", "content": "hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CHATS = {
    "a system role": ([{"role": "system", "content": "be kind"}, USER], 0, "System role not supported"),
    "two user turns": ([USER, USER], 1, "Conversation roles must alternate"),
    "a cancelled tool call": (
        [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}],
        1,
        "Not the same number of function calls and responses",
    ),
}


@pytest.mark.parametrize(("messages", "index", "words"), CHATS.values(), ids=CHATS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("url", [URL, "/tokenize"])
def test_tpl_02_the_answer_has_the_template_s_words_and_the_message(
    messages: list[dict[str, Any]], index: int, words: str, stream: bool, url: str
):
    engine = FakeEngine()
    engine.tokenizer.replace_chat_template(TEMPLATE)
    response = Client.of(engine).post(url, {"messages": messages, "stream": stream})
    assert response.status_code == 400
    error = response.json()["error"]
    assert words in error["message"]
    assert f"messages[{index}]" in error["message"]
    assert error["param"] == "messages"
    assert not engine.calls


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[9].content }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages[0].content.foo.bar }}",
        "{{ 1 / 0 }}",
        "{% for m in messages %}{{ m.nothing.at.all }}{% endfor %}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{{ 'x' * 10**9 }}",
        "{{ undefined_function() }}",
        "{% include 'x' %}",
        "{{",
    ],
)
def test_tpl_02_any_other_failure_of_a_template_is_a_400_as_well(template: str):
    response = Client.of(FakeEngine()).post(URL, {"messages": [USER], "chat_template": template})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["message"]
    assert "Traceback" not in error["message"] and ".py" not in error["message"]


@pytest.mark.e2e
@pytest.mark.parametrize(("messages", "index", "words"), CHATS.values(), ids=CHATS)
def test_tpl_02_a_real_server_answers_on(canary: Canary, messages: list[dict[str, Any]], index: int, words: str):
    response = canary.client.post(URL, json={"messages": messages, "chat_template": TEMPLATE})
    assert response.status_code == 400
    assert words in response.json()["error"]["message"]
    canary.check()
