"""Input items: checked, and completed to the shape in which they are kept and listed."""

from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import cast

import msgspec

from pelton.errors import RequestError
from pelton.http.openai.responses_api.shapes import new_id
from pelton.types import JsonObject

MAX_ID_LENGTH = 256

FindItem = Callable[[str], JsonObject | None]

_INPUT_ROLES = ("user", "system", "developer")
_TEXT_TYPES = ("input_text", "output_text", "text")


def input_items(
    given: str | list[JsonObject] | None, earlier: Iterable[JsonObject], find: FindItem
) -> list[JsonObject]:
    """The items of a body's `input`, each with an id and a status; `earlier` are those that stand before them.

    Args:
        find: gives the item that an item_reference means, None for an unknown id.

    Raises:
        RequestError: names the field of the item that is wrong or not supported.
    """
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not given:
        raise RequestError("input must be a string or a list with at least one item", param="input")
    call_ids = {item["call_id"] for item in earlier if item["type"] == "function_call"}
    items: list[JsonObject] = []
    for position, item in enumerate(given):
        name = f"input[{position}]"
        normal = _referenced(item, name, find) if item.get("type") == "item_reference" else _item(item, name)
        if normal["type"] == "function_call":
            call_ids.add(normal["call_id"])
        elif normal["type"] == "function_call_output" and normal["call_id"] not in call_ids:
            raise RequestError(
                f"No tool call found for function call output with call_id {normal['call_id']}.",
                param=f"{name}.call_id",
            )
        items.append(normal)
    return items


def _referenced(item: JsonObject, name: str, find: FindItem) -> JsonObject:
    item_id = _text(item, "id", name)
    found = find(item_id)
    if found is None:
        raise RequestError(
            f"Item with id {item_id[:MAX_ID_LENGTH]!r} not found. Send the item itself: it may not have been stored.",
            param=f"{name}.id",
            status=HTTPStatus.NOT_FOUND,
        )
    return found


def _item(item: JsonObject, name: str) -> JsonObject:
    match item.get("type"):
        case "message" | None:
            return _message(item, name)
        case "function_call":
            return _call(item, name)
        case "function_call_output":
            return {
                "id": _id(item, "fc"),
                "type": "function_call_output",
                "status": "completed",
                "call_id": _text(item, "call_id", name),
                "output": _call_output(item.get("output"), f"{name}.output"),
            }
        case "reasoning":
            return _reasoning(item, name)
        case kind:
            raise _unsupported(name, kind, "message, function_call, function_call_output and reasoning items")


def _message(item: JsonObject, name: str) -> JsonObject:
    role = item.get("role")
    if role == "assistant":
        kind = "output_text"
    elif role in _INPUT_ROLES:
        kind = "input_text"
    else:
        raise RequestError(f"{name}.role must be user, assistant, system or developer", param=f"{name}.role")
    return {
        "id": _id(item, "msg"),
        "type": "message",
        "status": _status(item),
        "role": role,
        "content": [_part(kind, text) for text in _texts(item.get("content"), f"{name}.content")],
    }


def _call(item: JsonObject, name: str) -> JsonObject:
    call: JsonObject = {
        "id": _id(item, "fc"),
        "type": "function_call",
        "status": _status(item),
        "call_id": _text(item, "call_id", name),
        "name": _text(item, "name", name),
        "arguments": _text(item, "arguments", name),
    }
    if call["status"] == "completed" and not _is_object(call["arguments"]):
        raise RequestError(f"{name}.arguments must be JSON text of an object", param=f"{name}.arguments")
    return call


def _is_object(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, RecursionError):
        return not text


def _status(item: JsonObject) -> str:
    return "incomplete" if item.get("status") in ("in_progress", "incomplete") else "completed"


def _part(kind: str, text: str) -> JsonObject:
    part: JsonObject = {"type": kind, "text": text}
    if kind == "output_text":
        part["annotations"] = []
    return part


def _reasoning(item: JsonObject, name: str) -> JsonObject:
    content = _reasoning_parts(item, "content", "reasoning_text", name)
    summary = _reasoning_parts(item, "summary", "summary_text", name)
    if item.get("encrypted_content") and not content and not summary:
        raise RequestError(
            f"{name}.encrypted_content cannot be read here: send the reasoning's content or leave the item out",
            param=f"{name}.encrypted_content",
        )
    return {"id": _id(item, "rs"), "type": "reasoning", "summary": summary, "content": content}


def _reasoning_parts(item: JsonObject, field: str, kind: str, name: str) -> list[JsonObject]:
    given: object = item.get(field)
    if given is None:
        return []
    if not isinstance(given, list):
        raise RequestError(f"{name}.{field} must be a list", param=f"{name}.{field}")
    parts: list[JsonObject] = []
    for position, part in enumerate(cast("list[object]", given)):
        match part:
            case {"type": str(found), "text": str(text)} if found == kind:
                parts.append({"type": kind, "text": text})
            case _:
                param = f"{name}.{field}[{position}]"
                raise RequestError(f"{param} must be an object of type {kind} with a text", param=param)
    return parts


def _call_output(output: object, name: str) -> str | list[JsonObject]:
    if isinstance(output, str):
        return output
    return [_part("input_text", text) for text in _texts(output, name)]


def _texts(content: object, name: str) -> list[str]:
    """The texts of a string or of a list of text parts."""
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise RequestError(f"{name} must be a string or a list of text parts", param=name)
    return [_part_text(part, f"{name}[{position}]") for position, part in enumerate(cast("list[object]", content))]


def _part_text(part: object, name: str) -> str:
    match part:
        case {"type": str(kind), "text": str(text)} if kind in _TEXT_TYPES:
            return text
        case {"type": "refusal", "refusal": str(text)}:
            return text
        case {"type": str(kind)} if kind in _TEXT_TYPES:
            raise RequestError(f"{name}.text must be a string", param=f"{name}.text")
        case {"type": "refusal"}:
            raise RequestError(f"{name}.refusal must be a string", param=f"{name}.refusal")
        case {"type": str(kind)}:
            raise _unsupported(name, kind, "text")
        case _:
            raise RequestError(f"{name} must be an object with a type", param=name)


def _text(item: JsonObject, field: str, name: str) -> str:
    value = item.get(field)
    if not isinstance(value, str):
        raise RequestError(f"{name}.{field} must be a string", param=f"{name}.{field}")
    return value


def _id(item: JsonObject, prefix: str) -> str:
    given = item.get("id")
    return given if isinstance(given, str) and 0 < len(given) <= MAX_ID_LENGTH else new_id(prefix)


def _unsupported(name: str, kind: object, known: str) -> RequestError:
    return RequestError(f"{name}: type {str(kind)[:50]!r} is not supported, only {known}", param=f"{name}.type")
