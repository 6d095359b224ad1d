"""From the body of a response to the chat that it amounts to, and from that chat's errors back to the body's fields."""

import re
from typing import cast

from pelton.errors import RequestError
from pelton.http.openai.requests import ChatBody
from pelton.http.openai.responses_api.body import ResponsesBody
from pelton.http.openai.responses_api.shapes import new_id
from pelton.http.openai.responses_api.tools import chat_tools
from pelton.types import MAX_LOGPROBS, JsonObject

LOGPROBS = "message.output_text.logprobs"
PLAIN_TEXT: JsonObject = {"type": "text"}
MAX_METADATA_PAIRS = 16
MAX_METADATA_KEY_LENGTH = 64
MAX_METADATA_VALUE_LENGTH = 512

# Kinds of data that only built-in tools and images have, and reasoning that needs no encryption, being sent in full.
_INCLUDED = frozenset(
    {
        LOGPROBS,
        "reasoning.encrypted_content",
        "file_search_call.results",
        "web_search_call.results",
        "web_search_call.action.sources",
        "message.input_image.image_url",
        "computer_call_output.output.image_url",
        "code_interpreter_call.outputs",
    }
)
_UNSUPPORTED = (
    *("conversation", "prompt", "enable_response_messages", "previous_input_messages", "previous_response"),
)
_SAME_NAME = (
    *("model", "parallel_tool_calls", "temperature", "top_p", "top_k", "min_p", "min_tokens", "presence_penalty"),
    *("frequency_penalty", "repetition_penalty", "seed", "stop", "stop_token_ids", "bad_words", "allowed_token_ids"),
    *("logit_bias", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "structured_outputs"),
    *("chat_template_kwargs", "priority", "cache_salt"),
)

_RENAMED = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"\bmax_(completion_)?tokens\b", "max_output_tokens"),
        (r"\bresponse_format(\.json_schema)?\b", "text.format"),
        (r"\breasoning_effort\b", "reasoning.effort"),
        (r"\bmessages(\[\d+\]|\.\w+)*", "input"),
        (r"(tools\[\d+\])\.function\b", r"\1"),
        (r"\btool_choice\.function\b", "tool_choice"),
    )
)


def chat_body(body: ResponsesBody, messages: list[JsonObject], *, continues: bool) -> ChatBody:
    """The chat to answer; `continues` its last message instead of beginning a new one.

    Raises:
        RequestError: names the field. What a chat has as well is left for the chat to check.
    """
    _check(body)
    tools, tool_choice = chat_tools(body.tools, body.tool_choice)
    chat = ChatBody(
        messages=messages,
        tools=tools,
        tool_choice=tool_choice,
        max_completion_tokens=body.max_output_tokens,
        logprobs=wants_logprobs(body) or None,
        top_logprobs=body.top_logprobs if wants_logprobs(body) else None,
        reasoning_effort=None if body.reasoning is None else body.reasoning.effort,
        response_format=_response_format(body),
        request_id=new_request_id(body),
        continue_final_message=continues or None,
    )
    for name in _SAME_NAME:
        setattr(chat, name, getattr(body, name))
    return chat


def new_request_id(body: ResponsesBody) -> str:
    """What the response's id has behind "resp_". Headers do not choose it: a retry is another response."""
    if body.request_id is None:
        return new_id("resp").removeprefix("resp_")
    return body.request_id.removeprefix("resp_")


def wants_logprobs(body: ResponsesBody) -> bool:
    return LOGPROBS in (body.include or ()) or bool(body.top_logprobs)


def own_names(error: RequestError) -> RequestError:
    """An error about the chat, in the names of the body that it was made from."""
    message, param = error.message, error.param
    for pattern, name in _RENAMED:
        message = pattern.sub(name, message)
        param = None if param is None else pattern.sub(name, param)
    return RequestError(
        message, param=param, status=error.status, code=error.code, retry_after=error.retry_after, reason=error.reason
    )


def _check(body: ResponsesBody) -> None:
    for name in _UNSUPPORTED:
        if getattr(body, name):
            raise RequestError(f"{name} is not supported", param=name)
    if body.n not in (None, 1):
        raise RequestError("n must be 1: a response has one answer", param="n")
    for position, value in enumerate(body.include or ()):
        if value not in _INCLUDED:
            raise RequestError(f"include[{position}]: {value[:50]!r} is not known", param=f"include[{position}]")
    top = body.top_logprobs
    if top is not None and not 0 <= top <= MAX_LOGPROBS:
        raise RequestError(
            f"top_logprobs must be at least 0 and at most {MAX_LOGPROBS}, got {top}", param="top_logprobs"
        )
    if body.background and body.store is False:
        raise RequestError("background needs store: a response that is not kept cannot be fetched", param="background")
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options is for streams: set stream to true", param="stream_options")
    _check_metadata(body.metadata or {})


def _check_metadata(metadata: dict[str, str]) -> None:
    if len(metadata) > MAX_METADATA_PAIRS:
        raise RequestError(f"metadata: at most {MAX_METADATA_PAIRS} pairs, got {len(metadata)}", param="metadata")
    for key, value in metadata.items():
        if len(key) > MAX_METADATA_KEY_LENGTH:
            raise RequestError(f"metadata: a key is longer than {MAX_METADATA_KEY_LENGTH} characters", param="metadata")
        if len(value) > MAX_METADATA_VALUE_LENGTH:
            raise RequestError(
                f"metadata.{key}: the value is longer than {MAX_METADATA_VALUE_LENGTH} characters",
                param=f"metadata.{key}",
            )


def _response_format(body: ResponsesBody) -> JsonObject | None:
    """`text.format` as a chat's response_format: there a schema is one level deeper."""
    if body.text is None:
        return None
    if body.text.verbosity not in (None, "medium"):
        raise RequestError("text.verbosity is not supported; leave it out", param="text.verbosity")
    given = body.text.format
    if given is None or given == PLAIN_TEXT:
        return None
    kind = given.get("type")
    if kind == "json_schema":
        if not isinstance(given.get("schema"), dict):
            raise RequestError("text.format.schema must be a JSON schema", param="text.format.schema")
        if not isinstance(given.get("name"), str):
            raise RequestError("text.format.name must be a string", param="text.format.name")
        return {"type": "json_schema", "json_schema": {name: given[name] for name in given if name != "type"}}
    if kind not in ("text", "json_object"):
        raise RequestError("text.format.type must be text, json_object or json_schema", param="text.format.type")
    return cast("JsonObject", {"type": kind})
