"""Error answers in the shape of the Messages API, and the paths that have it."""

import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Literal

import msgspec

from pelton.http.errors import as_request_error, error_body, shown_message

MESSAGES_PATH = "/v1/messages"

_TYPE_BY_STATUS: dict[int, str] = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.REQUEST_TIMEOUT: "timeout_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.INTERNAL_SERVER_ERROR: "api_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "overloaded_error",
    HTTPStatus.GATEWAY_TIMEOUT: "timeout_error",
}

_FIELDS = (
    (re.compile(r"^(tools\[\d+\])\.function\.parameters"), r"\1.input_schema"),
    (re.compile(r"^(tools\[\d+\])\.function\."), r"\1."),
    (re.compile(r"^response_format\.json_schema"), "output_config.format"),
    (re.compile(r"^stop:"), "stop_sequences:"),
)
_encode = msgspec.json.Encoder().encode


class MessagesErrorObject(msgspec.Struct):
    type: str
    message: str


class MessagesError(msgspec.Struct, kw_only=True):
    type: Literal["error"] = "error"
    error: MessagesErrorObject


def anthropic_error_body(error: Exception) -> bytes:
    """The JSON object {"type": "error", "error": {"type", "message"}}."""
    shown = as_request_error(error)
    kind = _TYPE_BY_STATUS.get(shown.status, "invalid_request_error")
    return _encode(MessagesError(error=MessagesErrorObject(kind, _in_own_terms(shown_message(shown)))))


def _in_own_terms(message: str) -> str:
    """With the Messages API's name where a message begins with the field of the chat that a body became."""
    field, space, rest = message.partition(" ")
    for theirs, ours in _FIELDS:
        field = theirs.sub(ours, field)
    return field + space + rest


def error_body_for(path: str) -> Callable[[Exception], bytes]:
    """How errors of a path are written: in the shape of its API."""
    return anthropic_error_body if path == MESSAGES_PATH or path.startswith(f"{MESSAGES_PATH}/") else error_body
