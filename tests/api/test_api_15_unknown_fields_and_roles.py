"""Unknown fields are accepted, roles are free, content may be a list of text parts."""

import pytest

from fakes import Client, FakeEngine

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("url", ["/v1/completions", CHAT])
def test_api_15_unknown_fields_change_nothing(url: str):
    body = {"prompt": "x", "messages": [{"role": "user", "content": "x", "mood": 1}], "max_tokens": 3, "seed": 1}
    client = Client.of(FakeEngine())
    plain = client.post(url, body).json()["choices"]
    response = client.post(url, {**body, "user": "me", "frobnicate": {"deep": [1]}, "service_tier": None})
    assert response.status_code == 200
    assert response.json()["choices"] == plain


def test_api_15_any_role_passes_to_the_template():
    engine = FakeEngine(script=[65])
    messages = [{"role": "narrator", "content": [{"type": "text", "text": "Once"}, {"type": "text", "text": "upon"}]}]
    assert Client.of(engine).post(CHAT, {"messages": messages}).status_code == 200
    text = engine.tokenizer.decode(engine.calls[0].prompt_ids, skip_special_tokens=False)
    assert text.startswith("<|im_start|>narrator\nOnce\nupon<|im_end|>")
