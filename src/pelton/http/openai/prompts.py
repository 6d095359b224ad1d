"""From prompts, token ids and chats to the token ids that the engine gets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from pelton.errors import RequestError
from pelton.http.openai.parameters import check_in_vocabulary
from pelton.http.openai.requests import ChatBody, ChatFields, CompletionBody, GenerationBody, Integer
from pelton.http.service import Service
from pelton.http.tools.messages import checked_tool_fields
from pelton.tokenizer import Tokenizer
from pelton.types import JsonObject

MAX_PROMPTS_TIMES_N = 2048
_PLAUSIBLE_CHARACTERS_PER_TOKEN = 16
_LONG_KEYS = frozenset({"tool_calls", "reasoning", "reasoning_content"})
_INLINE_CHARACTERS = 4096  # about a millisecond of tokenizing; longer texts go to a thread

PromptItem = str | list[int]


@dataclass(frozen=True, slots=True)
class Prompt:
    """`text` is what the client wrote; None where it gave ids, or where truncation cut the text."""

    token_ids: Sequence[int]
    text: str | None


async def completion_prompts(service: Service, body: CompletionBody, name: str = "prompt") -> list[Prompt]:
    """Every prompt of a body, truncated if asked; RequestError if one is empty, too long or out of vocabulary.

    `name` is what the client calls the field.
    """
    items = _prompt_items(body.prompt, name)
    num_choices = len(items) * (body.n or 1)
    if num_choices > MAX_PROMPTS_TIMES_N:
        raise RequestError(
            f"{name}: {len(items)} prompts with n = {body.n or 1} make {num_choices} choices; "
            f"at most {MAX_PROMPTS_TIMES_N} fit into one request",
            param=name,
        )
    texts = [item for item in items if isinstance(item, str)]
    max_model_len, vocab_size = service.max_model_len, service.engine.tokenizer.vocab_size
    limit = max_model_len if body.truncate_prompt_tokens is None else None
    adds_special = body.add_special_tokens is not False
    encoded = iter(await encode_texts(service, texts, add_special_tokens=adds_special, max_model_len=limit, name=name))
    prompts: list[Prompt] = []
    for position, item in enumerate(items):
        if isinstance(item, str):
            prompt = Prompt(next(encoded), item)
        else:
            check_in_vocabulary(_item_name(items, position, name), item, vocab_size)
            prompt = Prompt(item, None)
        prompt = _truncate(prompt, body, max_model_len)
        _check_length(prompt, _item_name(items, position, name), max_model_len, generates=body.max_tokens != 0)
        prompts.append(prompt)
    return prompts


async def chat_prompt(
    service: Service,
    body: ChatFields,
    *,
    max_model_len: int | None,
    add_special_tokens: bool = False,
    reasoning_effort: str | None = None,
) -> list[int]:
    """Render the messages and tokenize the result. Templates write BOS themselves, so none is added by default."""
    tokenizer = service.engine.tokenizer
    messages = normalize_messages(body.messages)
    arguments = _template_arguments(body, reasoning_effort)

    def render() -> list[int]:
        text = tokenizer.apply_chat_template(messages, **arguments)
        _refuse_hopeless(tokenizer, text, max_model_len, "messages")
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)

    num_characters = sum(len(message["content"]) for message in messages)
    has_extras = body.chat_template or body.chat_template_kwargs or body.documents or body.tools
    has_extras = has_extras or any(_LONG_KEYS & message.keys() for message in messages)
    if num_characters <= _INLINE_CHARACTERS and not has_extras:
        return render()
    return await service.text_pool.run(render)  # neither a long chat nor a client's template may stop the event loop


def _template_arguments(body: ChatFields, reasoning_effort: str | None) -> JsonObject:
    """Arguments of apply_chat_template but the messages."""
    if body.continue_final_message and body.add_generation_prompt:
        raise RequestError(
            "continue_final_message and add_generation_prompt exclude each other", param="continue_final_message"
        )
    add_generation_prompt = body.add_generation_prompt
    if add_generation_prompt is None:
        add_generation_prompt = not body.continue_final_message
    variables = dict(body.chat_template_kwargs or {})
    if reasoning_effort is not None:
        variables.setdefault("reasoning_effort", reasoning_effort)
        if reasoning_effort == "none":
            variables.setdefault("enable_thinking", False)  # what templates of the Qwen family ask for
    return {
        "add_generation_prompt": add_generation_prompt,
        "continue_final_message": bool(body.continue_final_message),
        "tools": body.tools,
        "documents": body.documents,
        "chat_template": body.chat_template,
        "template_kwargs": variables,
    }


async def chat_completion_prompt(service: Service, body: ChatBody) -> Prompt:
    """The one prompt of a chat, truncated if asked; RequestError if it is empty or too long."""
    max_model_len = service.max_model_len
    token_ids = await chat_prompt(
        service,
        body,
        max_model_len=max_model_len if body.truncate_prompt_tokens is None else None,
        add_special_tokens=bool(body.add_special_tokens),
        reasoning_effort=body.reasoning_effort,
    )
    prompt = _truncate(Prompt(token_ids, None), body, max_model_len)
    _check_length(prompt, "messages", max_model_len, generates=True)
    return prompt


async def encode_texts(
    service: Service, texts: list[str], *, add_special_tokens: bool, max_model_len: int | None, name: str = "prompt"
) -> list[list[int]]:
    """Token ids of each text, off the event loop where there is much of it; RequestError if one cannot fit."""
    tokenizer = service.engine.tokenizer

    def encode() -> list[list[int]]:
        for position, text in enumerate(texts):
            _refuse_hopeless(tokenizer, text, max_model_len, _item_name(texts, position, name))
        return [tokenizer.encode(text, add_special_tokens=add_special_tokens) for text in texts]

    if sum(map(len, texts)) <= _INLINE_CHARACTERS:
        return encode()
    return await service.text_pool.run(encode)


def _refuse_hopeless(tokenizer: Tokenizer, text: str, max_model_len: int | None, param: str) -> None:
    """RequestError for a text that would be too long were all its tokens the longest: no need to tokenize megabytes."""
    if max_model_len is None or len(text) <= _PLAUSIBLE_CHARACTERS_PER_TOKEN * max_model_len:
        return
    longest = max(len(tokenizer.token_bytes(token_id)) for token_id in range(tokenizer.vocab_size))
    num_tokens = len(text) // longest
    if num_tokens > max_model_len:
        raise RequestError(
            f"This model's maximum context length is {max_model_len} tokens. However, your request has at least "
            f"{num_tokens} input tokens. Please reduce the length of the input.",
            param=param,
        )


def normalize_messages(messages: list[JsonObject] | None) -> list[JsonObject]:
    """Messages whose content is a string; all else passes to the template as it is.

    The text parts of a list are joined by newlines. Roles are free: the template decides which it knows.
    """
    if not messages:
        raise RequestError("messages must hold at least one message", param="messages")
    return [_normalize_message(message, f"messages[{position}]") for position, message in enumerate(messages)]


def _normalize_message(message: JsonObject, name: str) -> JsonObject:
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError(f"{name}.role must be a string", param=f"{name}.role")
    message = checked_tool_fields(message, name)
    content = message.get("content")
    if content is None:
        if role != "assistant":
            raise RequestError(f"{name}.content must be a string or a list of text parts", param=f"{name}.content")
        return {**message, "content": ""}
    if isinstance(content, str):
        return message
    if not isinstance(content, list):
        raise RequestError(f"{name}.content must be a string or a list of text parts", param=f"{name}.content")
    items = cast("list[object]", content)
    parts = [_part_text(part, f"{name}.content[{position}]") for position, part in enumerate(items)]
    return {**message, "content": "\n".join(parts)}


def _part_text(part: object, name: str) -> str:
    match part:
        case str():
            return part
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "text"}:
            raise RequestError(f"{name}.text must be a string", param=f"{name}.text")
        case {"type": str(kind)}:
            raise RequestError(
                f"{name}: parts of type {kind[:50]!r} are not supported, only text", param=f"{name}.type"
            )
        case _:
            raise RequestError(f"{name} must be an object with a type", param=name)


def _prompt_items(prompt: str | list[str | Integer | list[Integer]] | None, name: str) -> list[PromptItem]:
    """One prompt or several, as a list; ids stay ids."""
    if prompt is None:
        raise RequestError(f"{name} is required", param=name)
    if isinstance(prompt, str):
        return [prompt]
    ids = [item for item in prompt if isinstance(item, int)]
    if ids and len(ids) == len(prompt):
        return [ids]
    items = [item for item in prompt if not isinstance(item, int)]
    if len({type(item) for item in items}) > 1 or len(items) < len(prompt):
        raise RequestError(f"{name} must be a string, token ids, or a list of either, not a mixture", param=name)
    if not items:
        raise RequestError(f"{name} must not be empty", param=name)
    return items


def _item_name(items: Sequence[object], position: int, name: str) -> str:
    return name if len(items) == 1 else f"{name}[{position}]"


def _truncate(prompt: Prompt, body: GenerationBody, max_model_len: int) -> Prompt:
    """Keep the last `truncate_prompt_tokens` ids, or the first with truncation_side right. -1 is the context length."""
    limit = body.truncate_prompt_tokens
    if limit is None:
        return prompt
    if limit == -1:
        limit = max_model_len
    if not 1 <= limit <= max_model_len:
        raise RequestError(
            f"truncate_prompt_tokens must be at least 1 and at most {max_model_len}, or -1, got {limit}",
            param="truncate_prompt_tokens",
        )
    if len(prompt.token_ids) <= limit:
        return prompt
    kept = prompt.token_ids[:limit] if body.truncation_side == "right" else prompt.token_ids[-limit:]
    return Prompt(kept, None)


def _check_length(prompt: Prompt, name: str, max_model_len: int, *, generates: bool) -> None:
    num_tokens = len(prompt.token_ids)
    if not num_tokens or prompt.text == "":
        raise RequestError(f"{name} must not be empty", param=name)
    if num_tokens + generates > max_model_len:
        raise RequestError(
            f"This model's maximum context length is {max_model_len} tokens. However, your request has {num_tokens} "
            "input tokens"
            + (", which leaves no room for output." if num_tokens == max_model_len else ".")
            + " Please reduce the length of the input.",
            param=name,
        )
