"""A body of the Messages API as the body of a chat completion."""

import msgspec

from pelton.errors import RequestError
from pelton.http.anthropic.conversation import chat_messages
from pelton.http.anthropic.requests import CountTokensBody, MessagesBody, Thinking, ToolChoice
from pelton.http.openai.requests import ChatBody
from pelton.types import MAX_STOP_STRINGS, JsonObject

MIN_THINKING_BUDGET = 1024


def prompt_body(body: CountTokensBody) -> ChatBody:
    """The part of a body that becomes the prompt, and how the answer is constrained.

    Raises:
        RequestError: names the field in the terms of the Messages API.
    """
    if body.mcp_servers:
        raise RequestError("mcp_servers is not supported: run the servers' tools yourself", param="mcp_servers")
    if body.container:
        raise RequestError("container is not supported", param="container")
    messages = chat_messages(body.system, body.messages)
    chat = ChatBody(model=body.model, messages=messages)
    if messages and messages[-1]["role"] == "assistant":  # without any it is refused where all chats are
        if "tool_calls" in messages[-1]:
            raise RequestError(
                "messages: the last one calls tools; send their tool_result blocks after it", param="messages"
            )
        chat.continue_final_message = True
    chat.tools = [_tool(tool, f"tools[{position}]") for position, tool in enumerate(body.tools or ())] or None
    if body.tool_choice is not None:
        chat.tool_choice = _tool_choice(body.tool_choice)
        if body.tool_choice.disable_parallel_tool_use:
            chat.parallel_tool_calls = False
    if body.thinking is not None:
        is_on = body.thinking.type != "disabled"
        # The names that templates have for the switch. One without it ignores them.
        chat.chat_template_kwargs = {"enable_thinking": is_on, "thinking": is_on}
    if body.output_config is not None:
        chat.reasoning_effort = body.output_config.effort
        if body.output_config.format is not None:
            json_schema = {"name": "output", "schema": body.output_config.format.schema}
            chat.response_format = {"type": "json_schema", "json_schema": json_schema}
    return chat


def chat_body(body: MessagesBody) -> ChatBody:
    """The whole of a body; raises as prompt_body does."""
    if body.temperature is not None and not 0.0 <= body.temperature <= 1.0:
        raise RequestError(
            f"temperature must be at least 0.0 and at most 1.0, got {body.temperature}", param="temperature"
        )
    _check_stop_sequences(body.stop_sequences or [])
    if body.thinking is not None:
        _check_budget(body.thinking, body.max_tokens)
    return msgspec.structs.replace(
        prompt_body(body),
        max_tokens=body.max_tokens,
        stop=body.stop_sequences,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        stream=body.stream,
    )


def _check_stop_sequences(sequences: list[str]) -> None:
    if len(sequences) > MAX_STOP_STRINGS:
        raise RequestError(
            f"stop_sequences: at most {MAX_STOP_STRINGS} strings, got {len(sequences)}", param="stop_sequences"
        )
    if "" in sequences:
        raise RequestError("stop_sequences: an empty string would stop at once; leave it out", param="stop_sequences")


def _check_budget(thinking: Thinking, max_tokens: int) -> None:
    """A budget is a target and never cuts a thought off, but one that cannot be meant is refused."""
    budget = thinking.budget_tokens
    if thinking.type != "enabled":
        return
    if budget is None:
        raise RequestError("thinking.budget_tokens is required with type enabled", param="thinking.budget_tokens")
    if not MIN_THINKING_BUDGET <= budget < max_tokens:
        raise RequestError(
            f"thinking.budget_tokens must be at least {MIN_THINKING_BUDGET} and less than max_tokens, got {budget}",
            param="thinking.budget_tokens",
        )


def _tool(tool: JsonObject, name: str) -> JsonObject:
    kind = tool.get("type")
    if kind not in (None, "custom"):
        raise RequestError(
            f"{name}: tools of type {str(kind)[:50]!r} are not supported, only custom ones", param=f"{name}.type"
        )
    if not isinstance(tool.get("name"), str):
        raise RequestError(f"{name}.name must be a string", param=f"{name}.name")
    if not isinstance(tool.get("input_schema"), dict):
        raise RequestError(f"{name}.input_schema must be an object", param=f"{name}.input_schema")
    function: JsonObject = {"name": tool["name"], "parameters": tool["input_schema"]}
    for key in ("description", "strict"):
        if tool.get(key) is not None:
            function[key] = tool[key]
    return {"type": "function", "function": function}


def _tool_choice(choice: ToolChoice) -> str | JsonObject:
    match choice.type:
        case "any":
            return "required"
        case "tool":
            if choice.name is None:
                raise RequestError("tool_choice.name is required with type tool", param="tool_choice.name")
            return {"type": "function", "function": {"name": choice.name}}
        case "auto" | "none":
            return choice.type
