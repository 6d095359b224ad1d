"""The body of POST /v1/responses, with vLLM's extensions. Unknown fields are accepted and ignored.

null means the default everywhere, so every field may be None.
"""

from typing import Literal

import msgspec

from pelton.http.openai.requests import Integer
from pelton.types import JsonObject


class TextOptions(msgspec.Struct, kw_only=True):
    format: JsonObject | None = None
    verbosity: str | None = None


class ReasoningOptions(msgspec.Struct, kw_only=True):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class ResponseStreamOptions(msgspec.Struct, kw_only=True):
    """Obfuscation is never added, so that asking for none is always met."""

    include_obfuscation: bool | None = None


class ResponsesBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    input: str | list[JsonObject] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    tools: list[JsonObject] | None = None
    tool_choice: str | JsonObject | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Integer | None = None  # of built-in tools, of which there are none
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    include: list[str] | None = None
    max_output_tokens: Integer | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: Integer | None = None
    metadata: dict[str, str] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    # Sampling and scheduling beyond OpenAI's fields, as in chats.
    top_k: Integer | None = None
    min_p: float | None = None
    min_tokens: Integer | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: Integer | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Integer] | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[Integer] | None = None
    logit_bias: dict[str, float] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    structured_outputs: JsonObject | None = None
    chat_template_kwargs: JsonObject | None = None
    priority: Integer | None = None
    cache_salt: str | None = None
    request_id: str | None = None

    # Refused where they would have an effect.
    n: Integer | None = None
    conversation: str | JsonObject | None = None
    prompt: JsonObject | None = None
    enable_response_messages: bool | None = None
    previous_input_messages: list[JsonObject] | None = None
    previous_response: JsonObject | None = None
