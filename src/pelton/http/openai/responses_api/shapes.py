"""Responses and their items as they are sent. None is sent as null, a tag as `type`."""

import uuid
from typing import Literal

import msgspec

from pelton.http.openai.responses import TokenLogprob
from pelton.types import JsonObject

ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


def new_id(prefix: str) -> str:
    """An id that cannot be guessed, e.g. "msg_..."."""
    return f"{prefix}_{uuid.uuid4().hex}"


class OutputText(msgspec.Struct, kw_only=True, tag_field="type", tag="output_text"):
    text: str
    annotations: list[JsonObject] = []
    logprobs: list[TokenLogprob] = []


class ReasoningText(msgspec.Struct, kw_only=True, tag_field="type", tag="reasoning_text"):
    text: str


class OutputMessage(msgspec.Struct, kw_only=True, tag_field="type", tag="message"):
    id: str
    status: ItemStatus
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class FunctionCall(msgspec.Struct, kw_only=True, tag_field="type", tag="function_call"):
    """`arguments` is JSON text; `call_id` is what the call's output refers to."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


class ReasoningItem(msgspec.Struct, kw_only=True, tag_field="type", tag="reasoning"):
    """What the model thought, in full. It is not summarized, and not encrypted."""

    id: str
    status: ItemStatus
    summary: list[JsonObject] = []
    content: list[ReasoningText]
    encrypted_content: None = None


OutputItem = OutputMessage | FunctionCall | ReasoningItem


class InputTokensDetails(msgspec.Struct, kw_only=True):
    """Nothing is written to a cache that would be billed."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, kw_only=True):
    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, kw_only=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(msgspec.Struct, kw_only=True):
    """Why a response failed."""

    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str
    param: str | None = None


class IncompleteDetails(msgspec.Struct, kw_only=True):
    reason: Literal["max_output_tokens"]


class TextConfig(msgspec.Struct, kw_only=True):
    format: JsonObject
    verbosity: Literal["medium"] = "medium"


class ReasoningConfig(msgspec.Struct, kw_only=True):
    effort: str | None
    summary: str | None


class Response(msgspec.Struct, kw_only=True):
    """A response. Status, output, usage, error and the times change while it is made, all else echoes the request.

    Times are Unix seconds.
    """

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: ResponseStatus
    background: bool
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem] = []
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: ReasoningConfig
    safety_identifier: str | None
    service_tier: Literal["default"] = "default"
    store: bool
    temperature: float
    text: TextConfig
    tool_choice: str | JsonObject
    tools: list[JsonObject]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None = None
    user: str | None


class ItemList(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[JsonObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Deleted(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class InputTokens(msgspec.Struct, kw_only=True):
    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int
