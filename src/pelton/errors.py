"""The errors that cross a process or API boundary."""

from http import HTTPStatus


class RequestError(ValueError):
    """Something a client asked for that cannot be done; ends that request alone.

    Args:
        message: what is wrong and how to mend it. Sent to the client: no paths, addresses or tracebacks.
        param: the request field at fault, or None.
        status: HTTP status, 400 unless said otherwise.
        code: the value of the error object's `type`; derived from the status by default.
        retry_after: seconds after which it can be asked for again, of 429 and 503; 1 by default.
        reason: OpenAI's word for it where clients go by that: the value of the error object's `code`, else the status.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        status: int = HTTPStatus.BAD_REQUEST,
        code: str | None = None,
        retry_after: float | None = None,
        reason: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.status = int(status)
        self.code = code or _TYPE_BY_STATUS.get(self.status, "invalid_request_error")
        self.retry_after = retry_after
        self.reason = reason


class EngineDeadError(RuntimeError):
    """The engine process is gone; its requests cannot be finished."""


_TYPE_BY_STATUS = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    408: "RequestTimeoutError",
    413: "BadRequestError",
    429: "RateLimitError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}
