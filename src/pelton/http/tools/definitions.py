"""The tools of a request and what it says about their use, checked."""

import re
from dataclasses import dataclass
from typing import Literal, cast

from pelton.errors import RequestError
from pelton.http.openai.requests import ChatBody
from pelton.types import JsonObject

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call. `parameters` is the JSON schema of its arguments, an object.

    `param` names the schema in errors.
    """

    name: str
    parameters: JsonObject
    strict: bool
    param: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """Which tools the model may call: none, as it likes, at least one of them, or exactly the one left here."""

    mode: Literal["none", "auto", "required", "named"]
    tools: tuple[Tool, ...] = ()
    parallel: bool = True

    @property
    def is_enforced(self) -> bool:
        """A call must be made, whatever the model would have liked."""
        return self.mode in ("required", "named")


def tool_use(body: ChatBody) -> ToolUse:
    """Check the fields of a chat that are about tools.

    Raises:
        RequestError: names the field.
    """
    _refuse_functions(body)
    if body.tools == []:
        raise RequestError("tools must not be empty; leave it out", param="tools")
    tools = _tools(body.tools or [])
    choice = "none" if body.tools is None else "auto"
    if body.tool_choice is not None:
        choice = body.tool_choice
    parallel = body.parallel_tool_calls is not False
    if isinstance(choice, dict):
        return ToolUse(mode="named", tools=(_named_tool(tools, choice),), parallel=False)
    if choice not in ("none", "auto", "required"):
        raise RequestError(
            'tool_choice must be "none", "auto", "required" or {"type": "function", "function": {"name": ...}}',
            param="tool_choice",
        )
    if choice == "none":
        return ToolUse(mode="none")
    if not tools:
        raise RequestError("tool_choice needs tools", param="tool_choice")
    return ToolUse(mode="auto" if choice == "auto" else "required", tools=tools, parallel=parallel)


def _refuse_functions(body: ChatBody) -> None:
    if body.functions:
        raise RequestError(
            'functions is the old form of tools: send tools, with {"type": "function", "function": ...} for each',
            param="functions",
        )
    if body.function_call not in (None, "none", "auto"):
        raise RequestError("function_call is the old form of tool_choice: send tool_choice", param="function_call")


def _tools(given: list[JsonObject]) -> tuple[Tool, ...]:
    tools: dict[str, Tool] = {}
    for position, item in enumerate(given):
        tool = _tool(item, f"tools[{position}]")
        if tool.name in tools:
            param = f"tools[{position}].function.name"
            raise RequestError(f"{param}: there are two tools named {tool.name!r}", param=param)
        tools[tool.name] = tool
    return tuple(tools.values())


def _tool(item: JsonObject, param: str) -> Tool:
    kind = item.get("type", "function")
    if kind != "function":
        raise RequestError(f"{param}.type must be function, got {str(kind)[:50]!r}", param=f"{param}.type")
    function = item.get("function")
    if not isinstance(function, dict):
        raise RequestError(f"{param}.function must be an object", param=f"{param}.function")
    function = cast("JsonObject", function)
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RequestError(
            f"{param}.function.name must be 1 to 64 letters, digits, underscores, dots or dashes",
            param=f"{param}.function.name",
        )
    if not isinstance(function.get("description"), str | None):
        raise RequestError(f"{param}.function.description must be a string", param=f"{param}.function.description")
    strict = function.get("strict")
    if not isinstance(strict, bool | None):
        raise RequestError(f"{param}.function.strict must be true or false", param=f"{param}.function.strict")
    return Tool(
        name, _parameters(function, f"{param}.function.parameters"), bool(strict), f"{param}.function.parameters"
    )


def _parameters(function: JsonObject, param: str) -> JsonObject:
    """The schema; a function without one takes no arguments."""
    schema: object = function.get("parameters")
    if schema is None:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    if not isinstance(schema, dict):
        raise RequestError(f"{param} must be a JSON schema, an object", param=param)
    schema = cast("JsonObject", schema)
    if schema.get("type", "object") != "object":
        raise RequestError(f'{param}.type must be "object": arguments are named', param=f"{param}.type")
    return {"type": "object", **schema}


def _named_tool(tools: tuple[Tool, ...], choice: JsonObject) -> Tool:
    match choice:
        case {"type": "function", "function": {"name": str(name)}}:
            pass
        case _:
            raise RequestError(
                'tool_choice must be {"type": "function", "function": {"name": ...}} to name a tool',
                param="tool_choice",
            )
    if not tools:
        raise RequestError("tool_choice needs tools", param="tool_choice")
    tool = next((tool for tool in tools if tool.name == name), None)
    if tool is None:
        names = ", ".join(tool.name for tool in tools[:10])
        raise RequestError(
            f"tool_choice: there is no tool named {name[:64]!r}; the tools are: {names}", param="tool_choice"
        )
    return tool
