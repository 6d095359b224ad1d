"""Messages of content blocks as the messages of a chat, which templates render."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from pelton.errors import RequestError
from pelton.http.anthropic.requests import Content, InputMessage
from pelton.types import JsonObject


@dataclass(frozen=True, slots=True)
class _Block:
    """A content block; `name` says where in the body it stands."""

    name: str
    value: JsonObject


def chat_messages(system: Content | None, messages: Sequence[InputMessage]) -> list[JsonObject]:
    """The chat that a conversation stands for.

    Messages of one role in a row are one turn. Results of tools are messages of their own, of the role "tool".

    Raises:
        RequestError: names the message or block at fault.
    """
    if not messages:
        raise RequestError("messages must hold at least one message", param="messages")
    chat: list[JsonObject] = []
    if system:
        chat.append(_message("system", _texts(_blocks(system, "system"), "system")))
    names: dict[str, str] = {}  # of the tools, by id of the call
    for role, blocks in _turns(messages):
        if role == "assistant":
            chat.append(_assistant_message(blocks, names))
        elif role == "user":
            chat += _user_messages(blocks, names)
        else:
            chat.append(_message("system", _texts(blocks, "system messages")))
    if chat[-1] == {"role": "assistant", "content": ""}:  # an answer that is to be begun
        chat.pop()
    return chat


def _turns(messages: Sequence[InputMessage]) -> Iterator[tuple[str, list[_Block]]]:
    role, blocks = "", list[_Block]()
    for position, message in enumerate(messages):
        if message.role != role:
            if blocks:
                yield role, blocks
            role, blocks = message.role, []
        name = f"messages[{position}].content"
        found = _blocks(message.content, name)
        if not found and not (role == "assistant" and position == len(messages) - 1):
            raise RequestError(f"{name} must not be empty", param=name)
        blocks += found
    yield role, blocks


def _blocks(content: Content, name: str) -> list[_Block]:
    if isinstance(content, str):
        return [_Block(name, {"type": "text", "text": content})] if content else []
    return [_Block(f"{name}[{position}]", block) for position, block in enumerate(content)]


def _message(role: str, texts: Sequence[str]) -> JsonObject:
    """Several texts stay parts of the message: the template decides how they are joined."""
    content = texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]
    return {"role": role, "content": content if texts else ""}


def _texts(blocks: Sequence[_Block], holder: str) -> list[str]:
    return [_text(block, holder) for block in blocks]


def _text(block: _Block, holder: str) -> str:
    match block.value:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "text"}:
            raise RequestError(f"{block.name}.text must be a string", param=f"{block.name}.text")
        case {"type": str(kind)}:
            raise RequestError(
                f"{block.name}: blocks of type {kind[:50]!r} are not supported in {holder}", param=f"{block.name}.type"
            )
        case _:
            raise RequestError(f"{block.name} must be an object with a type", param=block.name)


def _user_messages(blocks: Sequence[_Block], names: dict[str, str]) -> Iterator[JsonObject]:
    texts: list[str] = []
    for block in blocks:
        if block.value.get("type") != "tool_result":
            texts.append(_text(block, "user messages"))
            continue
        if texts:
            yield _message("user", texts)
            texts = []
        yield _tool_message(block, names)
    if texts:
        yield _message("user", texts)


def _tool_message(block: _Block, names: dict[str, str]) -> JsonObject:
    call_id = _string(block, "tool_use_id")
    if call_id not in names:
        raise RequestError(
            f"{block.name}: no tool_use block before it has the id {call_id[:100]!r}",
            param=f"{block.name}.tool_use_id",
        )
    content = block.value.get("content") or ""
    if not isinstance(content, (str, list)):
        raise RequestError(f"{block.name}.content must be a string or a list of blocks", param=f"{block.name}.content")
    texts = _texts(_blocks(cast("Content", content), f"{block.name}.content"), "tool results")
    if block.value.get("is_error"):  # templates know no failed results: the text has to say it
        texts = [f"Error: {texts[0]}" if texts else "Error", *texts[1:]]
    return {**_message("tool", texts), "tool_call_id": call_id, "name": names[call_id]}


def _assistant_message(blocks: Sequence[_Block], names: dict[str, str]) -> JsonObject:
    """Adds the names of the calls in it."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[JsonObject] = []
    for block in blocks:
        match block.value.get("type"):
            case "thinking":
                thoughts.append(_string(block, "thinking"))
            case "redacted_thinking":  # readable for the server that wrote it only
                pass
            case "tool_use":
                calls.append(_tool_call(block))
                names[calls[-1]["id"]] = calls[-1]["function"]["name"]
            case _:
                texts.append(_text(block, "assistant messages"))
    message = _message("assistant", texts)
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _tool_call(block: _Block) -> JsonObject:
    arguments = block.value.get("input")
    if not isinstance(arguments, dict):
        raise RequestError(f"{block.name}.input must be an object", param=f"{block.name}.input")
    function = {"name": _string(block, "name"), "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": _string(block, "id"), "type": "function", "function": function}


def _string(block: _Block, key: str) -> str:
    value = block.value.get(key)
    if not isinstance(value, str):
        raise RequestError(f"{block.name}.{key} must be a string", param=f"{block.name}.{key}")
    return value
