"""Server-sent events: an answer that is sent while it is made."""

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from http import HTTPStatus

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pelton.http.connection import while_connected
from pelton.http.errors import as_request_error, error_body

logger = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # proxies must not hold events back
_encode = msgspec.json.Encoder().encode


def event(value: msgspec.Struct) -> bytes:
    """One event. JSON has no bare newline, so a single data line holds it."""
    return b"data: " + _encode(value) + b"\n\n"


class EventStream(Response):
    """Sends what `events` yields, then [DONE].

    The status line waits for the first item, so that an error before it is a plain error answer. A later error becomes
    an error event, before [DONE]. When the client hangs up, `events` is closed.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        self.status_code = HTTPStatus.OK
        self.background = None
        self.init_headers(_HEADERS)
        self._events = events
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._send_events(send))
        except ClientDisconnect:
            logger.debug("%s: the client hung up", scope["path"])

    async def _send_events(self, send: Send) -> None:
        async with aclosing(self._events):
            try:
                async for item in self._events:
                    if not self._started:
                        self._started = True
                        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
                        await send(start)
                    await send({"type": "http.response.body", "body": item, "more_body": True})
            except Exception as error:
                if not self._started:
                    raise
                if as_request_error(error).status == HTTPStatus.INTERNAL_SERVER_ERROR:
                    logger.exception("a stream failed")
                await send(
                    {"type": "http.response.body", "body": b"data: " + error_body(error) + b"\n\n", "more_body": True}
                )
        await send({"type": "http.response.body", "body": DONE, "more_body": False})
