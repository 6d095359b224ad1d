"""Reasoning goes to a field of its own, whole and streamed, and is taken back under either name."""

import pytest

from fakes import CHAT_TEMPLATE, Client, FakeEngine

URL = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 200}
TEXT = "<think>\nHm, 🫠.\n</think>\n\nHello."


@pytest.fixture
def client() -> Client:
    engine = FakeEngine()
    engine.script = engine.ids(TEXT)
    engine.tokenizer.replace_chat_template(CHAT_TEMPLATE + "{# <think> </think> #}")
    return Client.of(engine)


def test_api_25_reasoning_and_answer_keep_apart(client: Client):
    message = client.post(URL, BODY).json()["choices"][0]["message"]
    assert message["reasoning"].strip() == "Hm, 🫠."
    assert message["content"].strip() == "Hello."
    deltas = [event["choices"][0]["delta"] for event in client.events(URL, BODY)]
    assert "".join(delta.get("reasoning") or "" for delta in deltas) == message["reasoning"]
    assert "".join(delta.get("content") or "" for delta in deltas) == message["content"]


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_api_25_either_name_reaches_the_template(name: str):
    engine = FakeEngine(script=[65])
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", name: "why"}]
    body = {"messages": messages, "chat_template": "{{ messages[1].reasoning_content }}", "max_tokens": 1}
    assert Client.of(engine).post(URL, body).status_code == 200
    assert engine.tokenizer.decode(engine.calls[0].prompt_ids) == "why"
