"""Chat templates: messages in OpenAI's form to the prompt text that the model's template makes of them."""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import jinja2
from jinja2 import nodes

from pelton.errors import RequestError
from pelton.tokenizer.template_sandbox import MAX_TEMPLATE_CHARS, METER, Meter, TemplateLimitError, TemplateSandbox

Message = Mapping[str, Any]

_MAX_CACHED_TEMPLATES = 16
_CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
_TEXT_KEYS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}  # by part type
_RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"})


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A template, and whether it goes through the parts of a message's content, and takes strings for it as well."""

    template: jinja2.Template
    reads_parts: bool
    reads_strings: bool


class ChatTemplates:
    """Renders chats. Keeps the most recently used templates compiled. Safe to use from several threads."""

    def __init__(self) -> None:
        self._sandbox = TemplateSandbox()
        self._compiled = functools.lru_cache(maxsize=_MAX_CACHED_TEMPLATES)(self._compile)

    def check(self, template: str) -> None:
        """Raises RequestError when the template is too long or has a syntax error."""
        self._compiled(template)

    def render(
        self,
        template: str,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        special_tokens: Mapping[str, str] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt for a chat, equal to transformers' `apply_chat_template(tokenize=False)` for the same messages.

        Messages are brought into the one form that templates expect, and never changed in place:

        - Content parts of type text (or refusal) become one string, joined by newlines, unless the template goes
          through parts itself. No content, null and [] are the empty string. Other keys with null are left out.
        - The JSON in a tool call's `arguments` becomes an object. `reasoning` becomes `reasoning_content`.

        Args:
            template: Jinja source of at most 64 KiB.
            continue_final_message: end the prompt inside the last message, so that the model goes on with it.
            special_tokens: `bos_token` and `eos_token` as the template may use them.
            template_kwargs: further variables of the template, such as `enable_thinking`.

        Raises:
            RequestError: the messages don't fit the template (its own words, and the index of the message it was at),
                a content part is no text, or the template is broken or exceeds its limits (see template_sandbox).
        """
        if continue_final_message and add_generation_prompt:
            raise RequestError(
                "continue_final_message needs add_generation_prompt=false: the last message is not over yet",
                param="continue_final_message",
            )
        variables = dict(template_kwargs or {})
        if taken := _RESERVED & variables.keys():
            raise RequestError(f"chat_template_kwargs: {min(taken)} is set by the server", param="chat_template_kwargs")
        compiled = self._compiled(template)
        chat = [_normalized(message, index, compiled) for index, message in enumerate(messages)]
        final_text = _tag_final_message(chat) if continue_final_message else ""
        variables |= special_tokens or {}
        variables |= {
            "messages": chat,
            "tools": list(tools) if tools is not None else None,
            "documents": list(documents) if documents is not None else None,
            "add_generation_prompt": add_generation_prompt,
        }
        prompt = _run(compiled.template, variables, Meter(chat))
        return _cut_at_tag(prompt, final_text) if continue_final_message else prompt

    def _compile(self, template: str) -> _Compiled:
        if len(template) > MAX_TEMPLATE_CHARS:
            raise RequestError(
                f"the chat template has {len(template)} characters; the limit is {MAX_TEMPLATE_CHARS}",
                param="chat_template",
            )
        try:
            tree = self._sandbox.parse(template)
            reads_parts = _reads_parts(tree)
            return _Compiled(self._sandbox.from_string(template), reads_parts, not reads_parts or _tests_string(tree))
        except (jinja2.TemplateError, RecursionError) as error:
            raise RequestError(f"the chat template does not compile: {error}", param="chat_template") from error


def _run(template: jinja2.Template, variables: dict[str, Any], meter: Meter) -> str:
    """Render; whatever goes wrong in a template is the request's failure."""
    try:
        return template.render({METER: meter, **variables})
    except Exception as error:  # a template can raise anything that Python can
        where = "" if meter.message_index is None else f" (at messages[{meter.message_index}])"
        if isinstance(error, jinja2.TemplateError) and not isinstance(error, jinja2.TemplateRuntimeError):
            message = f"{error}{where}"  # the template's own raise_exception
        elif isinstance(error, TemplateLimitError):
            message = f"the chat template was stopped{where}: {error}"
        else:
            message = f"the chat template cannot render these messages{where}: {error}"
        raise RequestError(message, param="messages") from error


def _normalized(message: Message, index: int, compiled: _Compiled) -> dict[str, Any]:
    plain = {key: value for key, value in message.items() if value is not None}
    plain["content"] = _content(message.get("content"), index, compiled)
    if "reasoning" in plain:
        plain.setdefault("reasoning_content", plain["reasoning"])
    if calls := plain.get("tool_calls"):
        plain["tool_calls"] = [_parsed_call(call, f"messages[{index}].tool_calls[{i}]") for i, call in enumerate(calls)]
    return plain


def _content(content: object, index: int, compiled: _Compiled) -> str | list[dict[str, Any]]:
    """A string, or a list of text parts where the template wants them."""
    if content is None or isinstance(content, str):
        text = content or ""
        return text if compiled.reads_strings else [{"type": "text", "text": text}]
    if not _is_list(content):
        raise RequestError(f"messages[{index}].content must be a string or a list of parts", param="messages")
    texts = [_part_text(part, f"messages[{index}].content[{i}]") for i, part in enumerate(content)]
    if compiled.reads_parts and texts:
        return [{"type": "text", "text": text} for text in texts]
    return "\n".join(texts)


def _part_text(part: object, where: str) -> str:
    if isinstance(part, str):
        return part
    if not _is_object(part):
        raise RequestError(f"{where} must be an object with a type", param="messages")
    kind = part.get("type")
    key = _TEXT_KEYS.get(kind) if isinstance(kind, str) else None
    if key is None:
        raise RequestError(
            f"{where}: parts of type {kind!r} are not supported, this model reads text", param="messages"
        )
    text = part.get(key)
    if not isinstance(text, str):
        raise RequestError(f"{where}.{key} must be a string", param="messages")
    return text


def _is_object(value: object) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, Mapping)


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence)


def _parsed_call(call: object, where: str) -> dict[str, Any]:
    """A tool call with its arguments as an object: OpenAI sends JSON text, templates expect what it stands for."""
    if not _is_object(call) or not _is_object(function := call.get("function")):
        raise RequestError(f"{where} must be an object with a function", param="messages")
    arguments: object = function.get("arguments")
    if isinstance(arguments, str) or arguments is None:
        try:
            arguments = json.loads(arguments) if arguments else dict[str, Any]()
        except ValueError as error:
            raise RequestError(f"{where}.function.arguments is not JSON: {error}", param="messages") from error
    return {**call, "function": {**function, "arguments": arguments}}


def _tag_final_message(chat: list[dict[str, Any]]) -> str:
    """Mark the end of the last message's text, and return that text."""
    final = chat[-1]["content"] if chat else ""
    if not final:
        raise RequestError("continue_final_message: the last message has no content to continue", param="messages")
    if isinstance(final, str):
        chat[-1]["content"] = final + _CONTINUE_TAG
        return final
    final[-1] = {"type": "text", "text": final[-1]["text"] + _CONTINUE_TAG}
    return final[-1]["text"].removesuffix(_CONTINUE_TAG)


def _cut_at_tag(prompt: str, final_text: str) -> str:
    """End the prompt where the last message's text ends, spaces kept only if the template kept them."""
    tag = _CONTINUE_TAG.strip()
    at = prompt.rfind(tag)
    if at < 0 or final_text.strip() not in prompt:
        raise RequestError(
            "continue_final_message: the chat template leaves out the last message or alters its end", param="messages"
        )
    kept_spaces = prompt.startswith(_CONTINUE_TAG, at)
    return prompt[:at] if kept_spaces else prompt[:at].rstrip()


def _reads_parts(tree: nodes.Template) -> bool:
    """Whether a loop goes over a message's content, directly or through a variable."""
    aliases = {
        assign.target.name
        for assign in tree.find_all(nodes.Assign)
        if isinstance(assign.target, nodes.Name) and _is_content(assign.node, frozenset())
    }
    return any(_is_content(loop.iter, frozenset(aliases)) for loop in tree.find_all(nodes.For))


def _is_content(node: nodes.Node, aliases: frozenset[str]) -> bool:
    if isinstance(node, nodes.Name):
        return node.name in aliases
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return False


def _tests_string(tree: nodes.Template) -> bool:
    return any(test.name == "string" for test in tree.find_all(nodes.Test))
