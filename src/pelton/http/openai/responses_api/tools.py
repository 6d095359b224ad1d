"""The tools of a response, which are flat, as those of a chat, which are nested."""

from typing import cast

from pelton.errors import RequestError
from pelton.types import JsonObject

ToolChoice = str | JsonObject

_MODES = ("none", "auto", "required")


def chat_tools(
    tools: list[JsonObject] | None, choice: ToolChoice | None
) -> tuple[list[JsonObject] | None, ToolChoice | None]:
    """Tools and choice of the chat. Where a choice allows some tools only, the model is told of no others.

    Raises:
        RequestError: names a tool that is not a function, or a choice that cannot be met.
    """
    functions = [_function(tool, f"tools[{position}]") for position, tool in enumerate(tools or ())]
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        functions = _allowed(functions, choice)
        mode = choice.get("mode", "auto")
        if mode not in ("auto", "required"):
            raise RequestError("tool_choice.mode must be auto or required", param="tool_choice.mode")
        choice = cast("str", mode)
    chosen = _choice(choice)
    if not functions and chosen in (None, "none", "auto"):
        return None, None
    return functions or None, chosen


def _function(tool: JsonObject, name: str) -> JsonObject:
    kind: object = tool.get("type")
    if kind != "function":
        raise RequestError(
            f"{name}: tools of type {str(kind)[:50]!r} are not supported, only function", param=f"{name}.type"
        )
    if not isinstance(tool.get("name"), str) or not tool["name"]:
        raise RequestError(f"{name}.name must be a string", param=f"{name}.name")
    fields = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {field: tool[field] for field in fields if tool.get(field) is not None}}


def _allowed(functions: list[JsonObject], choice: JsonObject) -> list[JsonObject]:
    given: object = choice.get("tools")
    if not isinstance(given, list) or not given:
        raise RequestError("tool_choice.tools must list at least one tool", param="tool_choice.tools")
    by_name = {function["function"]["name"]: function for function in functions}
    names: list[str] = []
    for position, tool in enumerate(cast("list[object]", given)):
        param = f"tool_choice.tools[{position}]"
        match tool:
            case {"type": "function", "name": str(name)} if name in by_name:
                names.append(name)
            case {"type": "function", "name": str(name)}:
                raise RequestError(f"{param}: {name[:64]!r} is not among the tools", param=f"{param}.name")
            case _:
                raise RequestError(f"{param} must be a function with a name", param=param)
    return [by_name[name] for name in dict.fromkeys(names)]


def _choice(choice: ToolChoice | None) -> ToolChoice | None:
    if choice is None or choice in _MODES:
        return choice
    match choice:
        case {"type": "function", "name": str(name)}:
            return {"type": "function", "function": {"name": name}}
        case {"type": "function"}:
            raise RequestError("tool_choice.name must be a string", param="tool_choice.name")
        case {"type": kind}:
            raise RequestError(
                f"tool_choice of type {str(kind)[:50]!r} is not supported, only function and allowed_tools",
                param="tool_choice.type",
            )
        case _:
            raise RequestError("tool_choice must be none, auto, required or an object", param="tool_choice")
