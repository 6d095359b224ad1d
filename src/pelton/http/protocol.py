"""uvicorn's HTTP protocol with bounds: on heads, and on how long a client may leave the server waiting."""

import asyncio
import functools
import logging
import time
from email.utils import formatdate
from http import HTTPStatus
from typing import cast

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from pelton.errors import RequestError
from pelton.http.connection import WRITE
from pelton.http.errors import error_body

logger = logging.getLogger(__name__)

WRITE_TIMEOUT_SECONDS = 30.0
READ_TIMEOUT_SECONDS = 30.0  # for a whole head, and between two pieces of a body
MAX_HEADER_BYTES = 64 * 2**10  # of the URL and all headers
MAX_HEADERS = 256
_MAX_UNPARSED_BYTES = 2**20  # of a head; the parser tells of a header only when it is complete
_LINGER_SECONDS = 2.0

_TOO_LARGE = RequestError(
    f"The headers are more than {MAX_HEADERS} or larger than {MAX_HEADER_BYTES} bytes",
    status=HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
)


class GuardedProtocol(HttpToolsProtocol):
    """One connection.

    A client that sends too large a head, or stops in the middle of a request, is answered and cut off; one that leaves
    its answers unread is cut off.
    """

    _is_in_head = False
    _is_refused = False  # what still comes is read and dropped
    _num_header_bytes = 0
    _num_unparsed_bytes = 0
    _refusal: RequestError | None = None
    _heard_at = 0.0  # when the client last was where it had to be, in seconds of the loop's clock
    _read_deadline: asyncio.TimerHandle | None = None
    _write_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] (as uvicorn's)
        super().connection_made(transport)
        self._expect_data()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_expecting()
        self._cancel_write_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        super().data_received(data)
        if self._is_in_head:
            self._num_unparsed_bytes += len(data)
            if self._num_unparsed_bytes > _MAX_UNPARSED_BYTES:
                self._refuse(_TOO_LARGE)

    def on_message_begin(self) -> None:
        self._is_in_head = True
        self._num_header_bytes = self._num_unparsed_bytes = 0
        self._expect_data()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count_header_bytes(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_header_bytes(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._heard_at = self.loop.time()
        self.server_state.default_headers = _date_headers(int(time.time()))
        super().on_headers_complete()
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is not None and cycle.scope is self.scope:
            cast("Scope", cycle.scope)[WRITE] = functools.partial(self._write_chunk, cycle)

    def on_body(self, body: bytes) -> None:
        self._heard_at = self.loop.time()
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._stop_expecting()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._refusal or RequestError(msg))

    def pause_writing(self) -> None:
        # The stream that feeds this connection stops at once; a client that stays away loses it.
        super().pause_writing()
        self._write_deadline = self.loop.call_later(WRITE_TIMEOUT_SECONDS, self._cut_off)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel_write_deadline()

    def _count_header_bytes(self, num_bytes: int) -> None:
        self._num_header_bytes += num_bytes
        if self._num_header_bytes > MAX_HEADER_BYTES or len(self.headers) >= MAX_HEADERS:
            self._refusal = _TOO_LARGE
            raise ValueError("headers too large")  # ends the parsing; send_400_response answers

    def _write_chunk(self, cycle: RequestResponseCycle, data: bytes) -> bool:
        """See WRITE: what the cycle's `send` does, where it would not wait."""
        if self.flow.write_paused or cycle.disconnected or cycle.response_complete or not cycle.chunked_encoding:
            return False
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    def _refuse(self, error: RequestError) -> None:
        """Answer, and close once the client has closed: closing on unread data would take the answer from it."""
        self._is_refused = True
        self._stop_expecting()
        self._unset_keepalive_if_required()
        body = error_body(error)
        headers = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[error.status] + headers + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(_LINGER_SECONDS, self.transport.close)

    def _expect_data(self) -> None:
        self._heard_at = self.loop.time()
        if self._read_deadline is None:
            self._read_deadline = self.loop.call_later(READ_TIMEOUT_SECONDS, self._check_heard)

    def _check_heard(self) -> None:
        left = self._heard_at + READ_TIMEOUT_SECONDS - self.loop.time()
        if left > 0:
            self._read_deadline = self.loop.call_later(left, self._check_heard)
            return
        self._read_deadline = None
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if not self._may_answer(cycle):
            self.transport.close()
            return
        if cycle is not None:
            cycle.disconnected = True  # its task hears of it and ends
            cycle.message_event.set()
        self._refuse(
            RequestError(
                f"The rest of the request did not come within {READ_TIMEOUT_SECONDS:g} s",
                status=HTTPStatus.REQUEST_TIMEOUT,
            )
        )

    def _may_answer(self, cycle: RequestResponseCycle | None) -> bool:
        """Whether something was asked, and no other answer is on its way."""
        if cast("Scope | None", self.scope) is None:
            return False
        if self._is_in_head:  # the cycle is that of the request before
            return cycle is None or cycle.response_complete
        return cycle is not None and not cycle.response_started

    def _stop_expecting(self) -> None:
        if self._read_deadline is not None:
            self._read_deadline.cancel()
            self._read_deadline = None

    def _cut_off(self) -> None:
        logger.warning("closing a connection whose client has read nothing for %g s", WRITE_TIMEOUT_SECONDS)
        self.transport.abort()

    def _cancel_write_deadline(self) -> None:
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None


@functools.lru_cache(maxsize=1)
def _date_headers(unix_seconds: int) -> list[tuple[bytes, bytes]]:
    return [(b"date", formatdate(unix_seconds, usegmt=True).encode())]
