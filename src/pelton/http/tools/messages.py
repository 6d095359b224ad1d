"""What messages of a chat say of earlier calls and reasoning, checked before a template sees it."""

from typing import cast

import msgspec

from pelton.errors import RequestError
from pelton.types import JsonObject


def checked_tool_fields(message: JsonObject, name: str) -> JsonObject:
    """The message, with its calls, tool_call_id and reasoning checked. An empty list of calls is left out.

    Raises:
        RequestError: names the field, which begins with `name`.
    """
    for key in ("tool_call_id", "reasoning", "reasoning_content"):
        if not isinstance(message.get(key), str | None):
            raise RequestError(f"{name}.{key} must be a string", param=f"{name}.{key}")
    calls: object = message.get("tool_calls")
    if not calls:
        return {key: value for key, value in message.items() if key != "tool_calls"}
    if not isinstance(calls, list):
        raise RequestError(f"{name}.tool_calls must be a list", param=f"{name}.tool_calls")
    for position, call in enumerate(cast("list[object]", calls)):
        _check_call(call, f"{name}.tool_calls[{position}]")
    return message


def _check_call(call: object, name: str) -> None:
    fields = _as_object(call, name)
    if fields.get("type", "function") != "function":
        raise RequestError(f"{name}.type must be function", param=f"{name}.type")
    if not isinstance(fields.get("id"), str | None):
        raise RequestError(f"{name}.id must be a string", param=f"{name}.id")
    function = _as_object(fields.get("function"), f"{name}.function")
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise RequestError(f"{name}.function.name must be a string", param=f"{name}.function.name")
    _check_arguments(function.get("arguments"), f"{name}.function.arguments")


def _as_object(value: object, name: str) -> JsonObject:
    if not isinstance(value, dict):
        raise RequestError(f"{name} must be an object", param=name)
    return cast("JsonObject", value)


def _check_arguments(arguments: object, name: str) -> None:
    """JSON text of an object, or the object; null and empty text mean no arguments."""
    if arguments is None or arguments == "":
        return
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments)
        except (msgspec.DecodeError, RecursionError) as error:
            raise RequestError(f"{name} is not JSON: {error}", param=name) from None
    if not isinstance(arguments, dict):
        raise RequestError(f"{name} must be JSON text of an object", param=name)
