"""Chat templates: equal to transformers on templates of the field, clear refusals, and limits that hold."""

import json
import time
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from pelton.errors import RequestError
from pelton.tokenizer import Tokenizer
from pelton.tokenizer.chat_template import ChatTemplates
from sample_texts import embedded_metadata

SMOLLM2 = embedded_metadata()["tokenizer.chat_template"]
LLAMA3 = """{{- bos_token }}
{%- if tools is not none and tools %}
    {{- "<|start_header_id|>system<|end_header_id|>\\n\\nTools:\\n" }}
    {%- for tool in tools %}
        {{- tool | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
    {{- "<|eot_id|>" }}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday: " + date_string | default("26 Jul 2024") + "\\n\\n" }}
{{- system_message }}{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '{"name": "' + tool_call.name + '", "parameters": ' }}
        {{- tool_call.arguments | tojson }}{{- "}<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
QWEN3 = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}{{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string
        and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and reasoning_content %}
            {{- '<|im_start|>assistant\\n<think>\\n' + reasoning_content.strip('\\n') }}
            {{- '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' }}
            {%- if tool_call.arguments is string %}{{- tool_call.arguments }}
            {%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + content + '\\n</tool_response><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""
MISTRAL = """{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{% endif %}
{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}
{% elif message['role'] == 'assistant' %}{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}
{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}
{% endfor %}"""
TEMPLATES = {"smollm2": SMOLLM2, "llama3": LLAMA3, "qwen3": QWEN3, "mistral": MISTRAL}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
TOOL = {"type": "function", "function": {"name": "f", "description": "<é> & 'x'", "parameters": {"type": "object"}}}


def _user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _assistant(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


CHATS = {
    "one": [_user("Hi")],
    "turns": [_user("  Hi\n"), _assistant("<think>\nhm\n</think>\n\nHello!"), _user("{{ 7 * 7 }} <|im_end|> é🫠\r\n")],
    "system": [{"role": "system", "content": " Be brief. "}, _user("Hi"), _assistant("Yo"), _user("?")],
    "tools": [
        _user("call"),
        _assistant(
            "", tool_calls=[{"type": "function", "function": {"name": "f", "arguments": {"x": [1, None, "é"]}}}]
        ),
        {"role": "tool", "content": "42"},
        _assistant("It is 42.", reasoning_content="easy"),
    ],
}


def _reference(template: str, messages: list[dict[str, Any]], **options: Any) -> str:
    options = {"add_generation_prompt": True, **SPECIAL, **options}
    return render_jinja_template(conversations=[messages], chat_template=template, **options)[0][0]


@pytest.mark.parametrize("chat", sorted(CHATS))
@pytest.mark.parametrize("name", sorted(TEMPLATES))
@pytest.mark.parametrize("tools", [None, [TOOL, TOOL]])
def test_prompts_equal_those_of_transformers(name: str, chat: str, tools: list[dict[str, Any]] | None) -> None:
    template, messages = TEMPLATES[name], CHATS[chat]
    if name == "mistral" and chat in {"system", "tools"}:
        with pytest.raises(RequestError, match="Conversation roles must alternate"):
            ChatTemplates().render(template, messages, special_tokens=SPECIAL)
        return
    for options in ({}, {"enable_thinking": False}, {"date_string": "1 Jan 2030"}):
        prompt = ChatTemplates().render(
            template, messages, tools=tools, special_tokens=SPECIAL, template_kwargs=options
        )
        assert prompt == _reference(template, messages, tools=tools, **options)
    plain = ChatTemplates().render(template, messages, special_tokens=SPECIAL, add_generation_prompt=False)
    assert plain == _reference(template, messages, add_generation_prompt=False)


@pytest.mark.parametrize("ending", ["It is", "It is ", " \n It is\n\n"])
@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_a_final_message_is_continued_as_in_transformers(name: str, ending: str) -> None:
    messages = [_user("Hi"), _assistant(ending)]
    prompt = ChatTemplates().render(
        TEMPLATES[name], messages, special_tokens=SPECIAL, add_generation_prompt=False, continue_final_message=True
    )
    assert prompt == _reference(TEMPLATES[name], messages, add_generation_prompt=False, continue_final_message=True)
    assert messages == [_user("Hi"), _assistant(ending)]


def test_a_final_message_that_cannot_be_continued_is_refused() -> None:
    options = {"add_generation_prompt": False, "continue_final_message": True}
    with pytest.raises(RequestError, match="no content to continue"):
        ChatTemplates().render(SMOLLM2, [_user("")], **options)
    with pytest.raises(RequestError, match="leaves out the last message"):
        ChatTemplates().render("{{ messages[0].role }}", [_user("Hi")], **options)
    with pytest.raises(RequestError, match="add_generation_prompt"):
        ChatTemplates().render(SMOLLM2, [_user("Hi")], continue_final_message=True)


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_text_parts_render_as_their_text_joined_by_newlines(role: str) -> None:
    templates = ChatTemplates()

    def prompt(content: Any) -> str:
        return templates.render(SMOLLM2, [{"role": role, "content": content}])

    parts = [{"type": "text", "text": text} for text in ("a", " b", "")]
    assert prompt(parts[:1]) == prompt("a")
    assert prompt(parts) == prompt("a\n b\n")
    assert prompt([]) == prompt(None) == prompt("")
    assert templates.render(SMOLLM2, [{"role": role}]) == prompt("")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}],
            r"content\[1\].*'image_url'",
        ),
        ([{"type": ["text"]}], r"content\[0\].*\['text'\]"),
        ([{"text": "a"}], r"content\[0\].*None"),
        ([7], r"content\[0\] must be an object"),
        ([{"type": "text"}], r"content\[0\].text must be a string"),
        (7, "must be a string or a list"),
        ({"type": "text", "text": "a"}, "must be a string or a list"),
    ],
)
def test_content_that_is_no_text_is_refused(content: Any, message: str) -> None:
    with pytest.raises(RequestError, match=rf"messages\[1\].{message}" if message[0] == "c" else message) as error:
        ChatTemplates().render(SMOLLM2, [_user("Hi"), _user(content)])
    assert (error.value.status, error.value.param) == (400, "messages")


PARTS_ONLY = "{% for m in messages %}{% for part in m['content'] %}<{{ part.text }}>{% endfor %}{% endfor %}"
PARTS_OR_STRING = (
    "{% for m in messages %}{% set content = m.content %}{% if content is string %}={{ content }}"
    "{% else %}{% for part in content %}<{{ part.text }}>{% endfor %}{% endif %}{% endfor %}"
)


def test_templates_that_read_parts_get_parts() -> None:
    templates = ChatTemplates()
    messages = [_user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])]
    assert templates.render(PARTS_ONLY, messages) == _reference(PARTS_ONLY, messages) == "<a><b>"
    assert templates.render(PARTS_OR_STRING, messages) == _reference(PARTS_OR_STRING, messages) == "<a><b>"
    assert templates.render(PARTS_ONLY, [_user("ab")]) == "<ab>"
    assert templates.render(PARTS_OR_STRING, [_user("ab")]) == "=ab"


def test_json_arguments_of_tool_calls_become_objects() -> None:
    def chat(arguments: Any) -> list[dict[str, Any]]:
        return [_user("q"), _assistant(None, tool_calls=[{"function": {"name": "f", "arguments": arguments}}])]

    assert ChatTemplates().render(QWEN3, chat('{"x": "é"}')) == _reference(QWEN3, chat({"x": "é"}))
    assert ChatTemplates().render(QWEN3, chat("")) == _reference(QWEN3, chat({}))
    with pytest.raises(RequestError, match=r"messages\[1\].tool_calls\[0\].function.arguments is not JSON"):
        ChatTemplates().render(QWEN3, chat("{x"))


def test_a_template_refuses_in_its_own_words_and_names_the_message() -> None:
    expected = "Conversation roles must alternate user/assistant/user/assistant/... (at messages[1])"
    with pytest.raises(RequestError) as error:
        ChatTemplates().render(MISTRAL, [_user("a"), _user("b")], special_tokens=SPECIAL)
    assert (error.value.message, error.value.status) == (expected, 400)
    cancelled = [_user("a"), _assistant(None, tool_calls=[{"function": {"name": "f", "arguments": "{}"}}] * 2)]
    with pytest.raises(RequestError, match=r"single tool-calls at once! \(at messages\[1\]\)"):
        ChatTemplates().render(LLAMA3, cancelled, special_tokens=SPECIAL)


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0].content + 1 }}",
        "{{ messages[0].missing.more }}",
        "{{ messages[9].content }}",
        "{{ 1 // 0 }}",
        "{% include 'x' %}",
        "{{ messages[0].__class__.__mro__ }}{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ ''.center(9) }}",
        "{{ 'x'.no_such() }}",
    ],
)
def test_whatever_goes_wrong_in_a_template_is_the_requests_failure(template: str) -> None:
    with pytest.raises(RequestError, match="cannot render these messages") as error:
        ChatTemplates().render(template, [_user("Hi")])
    assert error.value.status == 400


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "{% set t = [[[], []]] %}{% for x in t recursive %}{{ loop(t) }}{{ loop(t) }}{% endfor %}",
        "{{ range(1000000000)|length }}",
        "{{ 'a' * 10000000000 }}",
        "{{ [[0] * 100000] * 100000 }}",
        "{{ 9 ** 999999999 }}",
        "{{ '%1000000000d' % 1 }}{{ '%*d' % (1000000000, 1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 1000000000) }}",
        "{% set s = 'a' * 1000000 %}{{ s.replace('a', s) }}",
        "{% set s = 'a' * 1000000 %}{{ s|replace('a', s) }}",
        "{% set s = 'a' * 30000 %}{{ s.join([s] * 1000) }}",
        "{% set s = 'a' * 30000 %}{{ ([s] * 1000)|join(s) }}",
        "{{ ('\\n' * 1000000)|indent(1000000) }}",
        "{{ 1.5|round(1000000000, 'floor') }}",
        "{{ messages|tojson(indent=1000000000) }}",
        "{% set n = namespace(s='aa') %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
        "{% set n = namespace(s='aa') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
        "{% set n = namespace(s='aa') %}{% for i in range(99) %}{% set n.s = n.s|tojson|tojson %}{% endfor %}",
        "{% set n = namespace(s='aa') %}{% for i in range(99) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s }}",
        "{% set n = namespace(s='aa') %}{% for i in range(99) %}{% set x %}{{ n.s }}{{ n.s }}{% endset %}"
        "{% set n.s = x %}{% endfor %}",
        "{% set x %}{% for i in range(99999) %}" + "text " * 1000 + "{% endfor %}{% endset %}",
        "{% for i in range(99999) %}{{ messages[0].content * 1000 }}{% endfor %}",
    ],
)
def test_no_template_runs_or_grows_without_bound(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pelton.tokenizer.template_sandbox.MAX_SECONDS", 0.3)
    start = time.monotonic()
    with pytest.raises(RequestError) as error:
        ChatTemplates().render(template, [_user("Hi")])
    assert error.value.status == 400
    assert "chat template" in error.value.message
    assert time.monotonic() - start < 5


def test_a_namespace_that_holds_itself_prints() -> None:
    assert ChatTemplates().render("{% set n = namespace() %}{% set n.a = n %}{{ n }}", []) == "<Namespace>"


def test_templates_that_are_too_long_or_broken_are_refused() -> None:
    with pytest.raises(RequestError, match="limit is 65536"):
        ChatTemplates().check("x" * 65537)
    with pytest.raises(RequestError, match="does not compile"):
        ChatTemplates().check("{% for %}")
    ChatTemplates().check(QWEN3)


def test_a_thousand_messages_of_real_size_render_within_the_limits() -> None:
    messages = [message for i in range(500) for message in (_user(f"{i} " + "word " * 400), _assistant("x " * 300))]
    assert ChatTemplates().render(QWEN3, messages) == _reference(QWEN3, messages)


def test_message_text_is_data_not_template() -> None:
    assert "{{ 7 * 7 }}{% raw %}" in ChatTemplates().render(SMOLLM2, [_user("{{ 7 * 7 }}{% raw %}")])


def test_template_variables_of_the_server_cannot_be_replaced() -> None:
    with pytest.raises(RequestError, match="messages is set by the server"):
        ChatTemplates().render(SMOLLM2, [_user("Hi")], template_kwargs={"messages": []})


def test_the_tokenizer_renders_with_its_own_template_and_tokens() -> None:
    tokenizer = Tokenizer.from_gguf(embedded_metadata())
    messages = [_user("Hi")]
    prompt = tokenizer.apply_chat_template(messages)
    assert prompt == _reference(SMOLLM2, messages)
    assert tokenizer.apply_chat_template(messages, chat_template="{{ bos_token }}{{ eos_token }}") == (
        "<|im_start|><|im_end|>"
    )


def test_a_template_for_tools_is_used_with_tools() -> None:
    metadata = {**embedded_metadata(), "tokenizer.chat_template.tool_use": "tools: {{ tools|length }}"}
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.apply_chat_template([_user("Hi")], tools=[json.loads(json.dumps(TOOL))]) == "tools: 1"
    assert tokenizer.apply_chat_template([_user("Hi")]) == _reference(SMOLLM2, [_user("Hi")])


def test_a_model_without_a_template_says_so() -> None:
    metadata = {key: value for key, value in embedded_metadata().items() if "chat_template" not in key}
    with pytest.raises(RequestError, match="no chat template"):
        Tokenizer.from_gguf(metadata).apply_chat_template([_user("Hi")])
