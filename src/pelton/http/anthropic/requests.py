"""Request bodies of the Messages API. Unknown fields are accepted and ignored; null means the default.

Content blocks and tools are JSON objects here: `conversation` and `tools` read them, and name the one at fault.
"""

from typing import Annotated, Literal

import msgspec

from pelton.http.openai.requests import Integer
from pelton.types import MAX_STOP_STRINGS, JsonObject

Content = str | list[JsonObject]


def _schema(**limits: float) -> msgspec.Meta:
    """Limits for the OpenAPI document: the checks of `translate` say more than msgspec's."""
    return msgspec.Meta(extra_json_schema=limits)


class ToolChoice(msgspec.Struct, kw_only=True):
    """`name` goes with type "tool"."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, kw_only=True):
    """`budget_tokens` goes with type "enabled"; with `display` "omitted" thinking blocks have no text."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Integer | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(msgspec.Struct, kw_only=True):
    type: Literal["json_schema"]
    schema: JsonObject


class OutputConfig(msgspec.Struct, kw_only=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class InputMessage(msgspec.Struct, kw_only=True):
    role: Literal["user", "assistant", "system"]
    content: Content


class CountTokensBody(msgspec.Struct, kw_only=True):
    """What becomes the prompt."""

    messages: list[InputMessage]
    model: str | None = None
    system: Content | None = None
    tools: list[JsonObject] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None

    # What only Anthropic's own service can run: refused where it would have an effect.
    mcp_servers: list[JsonObject] | None = None
    container: JsonObject | str | None = None


class MessagesBody(CountTokensBody, kw_only=True):
    max_tokens: Integer
    stop_sequences: Annotated[list[str], _schema(maxItems=MAX_STOP_STRINGS)] | None = None
    temperature: Annotated[float, _schema(minimum=0, maximum=1)] | None = None
    top_p: float | None = None
    top_k: Integer | None = None
    metadata: JsonObject | None = None
    stream: bool | None = None
