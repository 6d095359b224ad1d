"""Request bodies of the OpenAI API, with vLLM's extensions. Unknown fields are accepted and ignored.

null means the default everywhere, so every field may be None.
"""

from typing import Annotated, Literal, Protocol

import msgspec

from pelton.types import JsonObject

Integer = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
JsonValue = JsonObject | list[object] | str | float | bool


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationBody(msgspec.Struct, kw_only=True):
    """Fields that completions and chat completions share."""

    model: str | None = None
    n: Integer | None = None
    min_tokens: Integer | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Integer | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: Integer | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Integer] | None = None
    ignore_eos: bool | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[Integer] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: Integer | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    truncate_prompt_tokens: Integer | None = None
    truncation_side: Literal["left", "right"] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    prompt_logprobs: Integer | None = None
    bad_words: list[str] | None = None
    best_of: Integer | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    early_stopping: bool | None = None
    spaces_between_special_tokens: bool | None = None  # of tokenizers of another kind: ours put none
    response_format: JsonObject | None = None
    structured_outputs: JsonObject | None = None
    guided_json: JsonValue | None = None
    guided_json_object: bool | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None
    structural_tag: str | JsonObject | None = None

    logits_processors: list[object] | None = None  # refused


class CompletionBody(GenerationBody, kw_only=True):
    prompt: str | list[str | Integer | list[Integer]] | None = None
    max_tokens: Integer | None = 16
    logprobs: Integer | None = None
    echo: bool | None = None
    suffix: str | None = None
    prompt_embeds: str | list[str] | None = None


class ChatFields(Protocol):
    """What ChatBody and TokenizeBody share: how messages become a prompt."""

    messages: list[JsonObject] | None
    chat_template: str | None
    chat_template_kwargs: JsonObject | None
    add_generation_prompt: bool | None
    continue_final_message: bool | None
    documents: list[JsonObject] | None
    tools: list[JsonObject] | None


class ChatBody(GenerationBody, kw_only=True):
    messages: list[JsonObject] | None = None
    chat_template: str | None = None
    chat_template_kwargs: JsonObject | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    documents: list[JsonObject] | None = None
    tools: list[JsonObject] | None = None
    max_tokens: Integer | None = None
    max_completion_tokens: Integer | None = None
    logprobs: bool | None = None
    top_logprobs: Integer | None = None
    echo: bool | None = None
    tool_choice: str | JsonObject | None = None
    parallel_tool_calls: bool | None = None
    functions: list[JsonObject] | None = None
    function_call: str | JsonObject | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    include_reasoning: bool | None = None
    modalities: list[str] | None = None


class TokenizeBody(msgspec.Struct, kw_only=True):
    """Either `prompt` or `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: list[JsonObject] | None = None
    chat_template: str | None = None
    chat_template_kwargs: JsonObject | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    documents: list[JsonObject] | None = None
    tools: list[JsonObject] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    tokens: list[Integer]
    model: str | None = None
