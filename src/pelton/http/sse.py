"""Server-sent events: an answer that is sent while it is made."""

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pelton.errors import RequestError
from pelton.http.connection import WRITE, DirectWrite, while_connected
from pelton.http.errors import as_request_error, error_body

logger = logging.getLogger(__name__)

MAX_WAITING_BYTES = 16 * 2**20  # of one stream's events; far above what a client that reads leaves waiting
DONE = b"data: [DONE]\n\n"
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # proxies must not hold events back
_encode = msgspec.json.Encoder().encode


def event(value: msgspec.Struct) -> bytes:
    """One event. JSON has no bare newline, so a single data line holds it."""
    return b"data: " + _encode(value) + b"\n\n"


class EventTemplate:
    """An event of which only one text changes: the rest is encoded once.

    Args:
        value: what to send, with MARK in the place of the text. No text of a client may come after it.
    """

    MARK = "\0"

    def __init__(self, value: msgspec.Struct) -> None:
        self._before, mark, self._after = event(value).rpartition(_encode(self.MARK))
        assert mark, "the value has no MARK"

    def event(self, text: str) -> bytes:
        return self._before + _encode(text) + self._after


def openai_ending(error: Exception | None) -> bytes:
    """The error, if one ended the stream, as an event, and [DONE]."""
    return DONE if error is None else b"data: " + error_body(error) + b"\n\n" + DONE


class Closeable(Protocol):
    def close(self) -> None: ...


class Outbox:
    """Events on their way from callbacks to the task that sends them.

    While that task has nothing to do, events go straight into the connection where the server allows it: a turn of the
    event loop and four coroutines less for each. Else they wait here for the task, in order, at most until the client
    is cut off. `put` and `end` may be called at any time; after `end` nothing more may be put.

    Nothing is dropped for a slow client, and the engine does not wait for it: when MAX_WAITING_BYTES wait, `put` raises
    RequestError, which ends the stream.
    """

    def __init__(self, write: DirectWrite | None) -> None:
        self._write = write
        self._events: list[bytes] = []
        self._num_bytes = 0  # of the events
        self._waiter: asyncio.Future[None] | None = None
        self._may_write = False  # the task waits, after it has sent all before
        self._ended = False
        self._error: Exception | None = None

    def put(self, data: bytes) -> None:
        if self._may_write and self._write is not None and self._write(data):
            return
        if self._num_bytes + len(data) > MAX_WAITING_BYTES:
            raise RequestError("The stream was ended: its client reads too slowly", status=HTTPStatus.REQUEST_TIMEOUT)
        self._events.append(data)
        self._num_bytes += len(data)
        self._wake()

    def end(self, error: Exception | None = None, *, last: bytes = b"") -> None:
        """No more events than `last`. `error` is what ended them early."""
        self._ended = True
        self._error = error
        if last:
            self._events.append(last)
        self._wake()

    async def take(self, *, begun: bool) -> bytes:
        """All events since the last call, once there are any; empty at the end. Raises the error that ended them.

        `begun`: the head of the response is sent, so that events may be written without this task.
        """
        if not self._events and not self._ended:
            self._waiter = asyncio.get_running_loop().create_future()
            self._may_write = begun
            await self._waiter
        if not self._events and self._error is not None:
            raise self._error
        data = b"".join(self._events)
        self._events.clear()
        self._num_bytes = 0
        return data

    def _wake(self) -> None:
        self._may_write = False
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class EventStream(Response):
    """Sends the events of what `start` starts, then what `ending` gives: by default [DONE].

    The status line waits for the first event, so that an error before it is a plain error answer. A later error is
    given to `ending`, which tells the client. At the end, and when the client hangs up, what was started is closed.
    """

    media_type = "text/event-stream"

    def __init__(
        self, start: Callable[[Outbox], Closeable], ending: Callable[[Exception | None], bytes] = openai_ending
    ) -> None:
        self.status_code = HTTPStatus.OK
        self.background = None
        self.init_headers(_HEADERS)
        self._start = start
        self._ending = ending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._run(Outbox(scope.get(WRITE)), send))
        except ClientDisconnect:
            logger.debug("%s: the client hung up", scope["path"])

    async def _run(self, outbox: Outbox, send: Send) -> None:
        started = self._start(outbox)
        try:
            await self._send_events(outbox, send)
        finally:
            started.close()

    async def _send_events(self, outbox: Outbox, send: Send) -> None:
        data = await outbox.take(begun=False)
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        failure: Exception | None = None
        try:
            while data:
                await send({"type": "http.response.body", "body": data, "more_body": True})
                data = await outbox.take(begun=True)
        except Exception as error:
            if as_request_error(error).status == HTTPStatus.INTERNAL_SERVER_ERROR:
                logger.exception("a stream failed")
            failure = error
        await send({"type": "http.response.body", "body": self._ending(failure), "more_body": False})
