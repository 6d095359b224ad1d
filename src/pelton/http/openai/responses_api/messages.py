"""From items to the messages of a chat."""

from collections.abc import Iterable

from pelton.types import JsonObject


def chat_messages(instructions: str | None, items: Iterable[JsonObject]) -> list[JsonObject]:
    """The chat that items of `input_items` or of earlier responses amount to.

    Instructions and what the items begin with in the system's or developer's name become one system message, because
    many templates know one only, at the start. Reasoning, text and calls that follow each other are one message of the
    assistant.
    """
    opening = [instructions] if instructions else []
    messages: list[JsonObject] = []
    for item in items:
        if not messages and item["type"] == "message" and item["role"] in ("system", "developer"):
            opening.append(_joined(item["content"]))
        else:
            _append(messages, item)
    if opening:
        messages.insert(0, {"role": "system", "content": "\n\n".join(opening)})
    return messages


def is_unfinished(items: list[JsonObject]) -> bool:
    """Whether the last item is a message of the assistant that the model shall go on with."""
    last = items[-1]
    return last["type"] == "message" and last["role"] == "assistant" and last["status"] == "incomplete"


def _append(messages: list[JsonObject], item: JsonObject) -> None:
    match item["type"]:
        case "reasoning":
            text = _joined(item["content"]) or _joined(item["summary"])
            if text:
                messages.append({"role": "assistant", "content": "", "reasoning_content": text})
        case "function_call" if item["status"] == "incomplete":
            pass  # cut short, its arguments are no JSON, and nobody has run it
        case "function_call":
            call = {
                "id": item["call_id"],
                "type": "function",
                "function": {"name": item["name"], "arguments": item["arguments"]},
            }
            _assistant(messages).setdefault("tool_calls", []).append(call)
        case "function_call_output":
            output = item["output"]
            content = output if isinstance(output, str) else _joined(output)
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": content})
        case _:
            _append_message(messages, item)


def _append_message(messages: list[JsonObject], item: JsonObject) -> None:
    text = _joined(item["content"])
    if item["role"] != "assistant":
        role = "system" if item["role"] == "developer" else item["role"]
        messages.append({"role": role, "content": text})
    elif messages and messages[-1]["role"] == "assistant" and not messages[-1]["content"]:
        messages[-1]["content"] = text
    else:
        messages.append({"role": "assistant", "content": text})


def _assistant(messages: list[JsonObject]) -> JsonObject:
    """The assistant's message under way."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _joined(parts: Iterable[JsonObject]) -> str:
    return "\n".join(part["text"] for part in parts)
