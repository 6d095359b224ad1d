"""Content as a string and as a list of text parts is the same prompt; what is no text is refused by name.

Reported: "can only concatenate str (not list) to str" out of the template, and a list that is printed as Python writes
it (vllm#16245, lm-sys/FastChat#3017, OpenGVLab/InternVL#726). Several text parts are joined by newlines.
"""

from typing import Any

import pytest

from fakes import CHAT_TEMPLATE, Client, FakeEngine

URL = "/v1/chat/completions"
ROLES = ["system", "user", "assistant", "tool", "developer"]
# Of the kinds that exist: one reads strings only, one goes through parts, one does either.
TEMPLATES = {
    "strings": CHAT_TEMPLATE,
    "parts": (
        "{% for m in messages %}{{ m['role'] }}:{% for p in m['content'] %}[{{ p['text'] }}]{% endfor %};{% endfor %}"
    ),
    "both": (
        "{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %};{% endfor %}"
    ),
}


def prompt_of(role: str, content: Any, template: str) -> list[int]:
    engine = FakeEngine(script=[65])
    message = {"role": role, "content": content, "tool_call_id": "call_1"}
    body = {"messages": [{"role": "user", "content": "hi"}, message], "chat_template": template}
    response = Client.of(engine).post(URL, body)
    assert response.status_code == 200, response.text
    return list(engine.calls[0].prompt_ids)


def text(*parts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": part} for part in parts]


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
@pytest.mark.parametrize("role", ROLES)
def test_tpl_01_one_text_part_is_the_string(role: str, template: str):
    assert prompt_of(role, text("what is it"), template) == prompt_of(role, "what is it", template)


@pytest.mark.parametrize("role", ROLES)
def test_tpl_01_several_parts_are_joined_by_newlines(role: str):
    assert prompt_of(role, text("a", "b", "c"), CHAT_TEMPLATE) == prompt_of(role, "a\nb\nc", CHAT_TEMPLATE)


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
@pytest.mark.parametrize("role", ROLES)
def test_tpl_01_an_empty_list_is_the_empty_string(role: str, template: str):
    assert prompt_of(role, [], template) == prompt_of(role, "", template)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}, "messages[0].content[1].type"),
        ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, "messages[0].content[1].type"),
        ({"type": "text"}, "messages[0].content[1].text"),
        ({"type": "text", "text": None}, "messages[0].content[1].text"),
        ({"type": "text", "text": ["x"]}, "messages[0].content[1].text"),
        ({"text": "no type"}, "messages[0].content[1]"),
        (7, "messages[0].content[1]"),
        (None, "messages[0].content[1]"),
    ],
)
def test_tpl_01_what_is_no_text_is_a_400_that_names_the_part(role: str, part: Any, param: str):
    engine = FakeEngine()
    messages = [{"role": role, "content": [*text("look"), part]}]
    response = Client.of(engine).post(URL, {"messages": messages})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    if isinstance(part, dict) and part.get("type") not in (None, "text"):
        assert part["type"] in error["message"]
    assert not engine.calls


@pytest.mark.parametrize("content", [7, True, {"type": "text", "text": "x"}])
def test_tpl_01_content_of_another_type_is_a_400(content: Any):
    response = Client.of(FakeEngine()).post(URL, {"messages": [{"role": "user", "content": content}]})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages[0].content"
