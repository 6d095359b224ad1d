"""Error answers in the shape of the OpenAI API, and which exception becomes which."""

import math
from collections.abc import Callable
from http import HTTPStatus

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from pelton.errors import EngineDeadError, RequestError

STATUS_CLIENT_GONE = 499  # nobody reads it; for logs and counters only
_RETRY_AFTER_SECONDS = 1

_RETRIED = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_encode = msgspec.json.Encoder().encode


class ErrorObject(msgspec.Struct, kw_only=True):
    """`code` is the HTTP status or OpenAI's word for the error, `param` the request field at fault."""

    message: str
    type: str
    param: str | None
    code: int | str


class ErrorBody(msgspec.Struct):
    error: ErrorObject


def as_request_error(error: Exception) -> RequestError:
    """What a client may know of an error: its own mistakes in full, ours as a status alone."""
    match error:
        case RequestError():
            return error
        case EngineDeadError():
            return RequestError("The engine has stopped; try again", status=HTTPStatus.SERVICE_UNAVAILABLE)
        case HTTPException(status_code=status, detail=detail):
            return RequestError(detail, status=status)
        case ClientDisconnect():
            return RequestError("The client has closed the connection", status=STATUS_CLIENT_GONE)
        case _:
            return RequestError("Internal server error", status=HTTPStatus.INTERNAL_SERVER_ERROR)


def error_body(error: Exception) -> bytes:
    """The JSON object {"error": {"message", "type", "param", "code"}}."""
    shown = as_request_error(error)
    code = shown.reason or shown.status
    body = ErrorObject(message=shown_message(shown), type=shown.code, param=shown.param, code=code)
    return _encode(ErrorBody(body))


def shown_message(error: RequestError) -> str:
    """The message without unpaired surrogates, which cannot be sent back."""
    return error.message.encode(errors="replace").decode()


def error_response(error: Exception, body: Callable[[Exception], bytes] = error_body) -> Response:
    """The whole answer; `body` writes it in the shape of an API. 429 and 503 say when to come back."""
    shown = as_request_error(error)
    headers: dict[str, str] = {}
    if shown.status in _RETRIED:
        headers["Retry-After"] = str(max(_RETRY_AFTER_SECONDS, math.ceil(shown.retry_after or 0)))
    if isinstance(error, HTTPException) and error.headers:
        headers.update(error.headers)
    return Response(body(error), shown.status, headers, "application/json")
