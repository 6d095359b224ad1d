"""uvicorn over a listening socket: drains on the first signal, ends at once on the second."""

import asyncio
import contextlib
import functools
import logging
import signal
import socket
import time
from collections.abc import Generator
from email.utils import formatdate
from http import HTTPStatus
from pathlib import Path
from typing import cast

import uvicorn
from starlette.types import ASGIApp, Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from pelton.config import EngineConfig
from pelton.engine.protocol import EngineClient
from pelton.errors import RequestError
from pelton.http.app import create_app
from pelton.http.connection import WRITE
from pelton.http.errors import error_body
from pelton.http.gate import Lifecycle
from pelton.http.listener import BACKLOG

logger = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 75  # above the idle time of client pools, so that they close first
WRITE_TIMEOUT_SECONDS = 30.0
MAX_HEADER_BYTES = 64 * 2**10
MAX_HEADERS = 256
_ABORT_SECONDS = 2.0  # for aborted requests to send their last chunk


async def run_server(engine: EngineClient, config: EngineConfig, sock: socket.socket) -> int:
    """Serve on `sock` until SIGTERM or SIGINT; returns the exit code.

    The first signal drains: new requests get a 503, running ones have `config.shutdown_timeout` seconds, then they end
    with finish_reason "abort". A second signal ends at once.
    """
    lifecycle = Lifecycle()
    server = _Server(create_app(engine, lifecycle))
    loop = asyncio.get_running_loop()
    draining: list[asyncio.Task[None]] = []

    def on_signal() -> None:
        if draining:
            logger.warning("second signal: ending at once")
            server.end(at_once=True)
        else:
            lifecycle.draining = True
            draining.append(loop.create_task(_drain(engine, config, lifecycle, server)))

    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, on_signal)
    try:
        await server.serve(sockets=[sock])
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
        for task in draining:
            task.cancel()
        if config.uds is not None:
            Path(config.uds).unlink(missing_ok=True)
    return 0


async def _drain(engine: EngineClient, config: EngineConfig, lifecycle: Lifecycle, server: "_Server") -> None:
    logger.info("draining: %d requests have %g s to end", lifecycle.num_active, config.shutdown_timeout)
    try:
        if not await lifecycle.wait_idle(config.shutdown_timeout):
            logger.warning("aborting %d requests", lifecycle.num_active)
            await engine.abort_all()
            await lifecycle.wait_idle(_ABORT_SECONDS)
    finally:
        server.end()


class _Server(uvicorn.Server):
    """uvicorn, but at rest when nothing is asked of it.

    Its signal handling is left out: it would close the listener before requests are drained.
    """

    def __init__(self, app: ASGIApp) -> None:
        config = uvicorn.Config(
            app,
            http=_Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=int(_ABORT_SECONDS),
        )
        super().__init__(config)
        self._ended = asyncio.Event()

    def end(self, *, at_once: bool = False) -> None:
        """Stop serving; `at_once` without waiting for connections."""
        self.force_exit = self.force_exit or at_once
        self.should_exit = True
        self._ended.set()

    async def main_loop(self) -> None:
        # uvicorn's own wakes ten times a second to see whether it should end, and to set the Date header.
        await self._ended.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class _Protocol(HttpToolsProtocol):
    """uvicorn's protocol with bounds on headers and on how long a client may leave its data unread."""

    _num_header_bytes = 0
    _refusal: tuple[HTTPStatus, str] | None = None
    _write_deadline: asyncio.TimerHandle | None = None

    def on_message_begin(self) -> None:
        self._num_header_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._num_header_bytes += len(name) + len(value)
        if self._num_header_bytes > MAX_HEADER_BYTES or len(self.headers) >= MAX_HEADERS:
            self._refusal = (
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"The headers are more than {MAX_HEADERS} or larger than {MAX_HEADER_BYTES} bytes",
            )
            raise ValueError("headers too large")  # ends the parsing; send_400_response answers
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self.server_state.default_headers = _date_headers(int(time.time()))
        super().on_headers_complete()
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is not None and cycle.scope is self.scope:
            cast("Scope", cycle.scope)[WRITE] = functools.partial(self._write_chunk, cycle)

    def _write_chunk(self, cycle: RequestResponseCycle, data: bytes) -> bool:
        """See WRITE: what the cycle's `send` does, where it would not wait."""
        if self.flow.write_paused or cycle.disconnected or cycle.response_complete or not cycle.chunked_encoding:
            return False
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    def send_400_response(self, msg: str) -> None:
        status, message = self._refusal or (HTTPStatus.BAD_REQUEST, msg)
        body = error_body(RequestError(message, status=status))
        headers = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + headers + body)
        self.transport.close()

    def pause_writing(self) -> None:
        # The stream that feeds this connection stops at once; a client that stays away loses it.
        super().pause_writing()
        self._write_deadline = self.loop.call_later(WRITE_TIMEOUT_SECONDS, self._cut_off)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        super().connection_lost(exc)

    def _cut_off(self) -> None:
        logger.warning("closing a connection whose client has read nothing for %g s", WRITE_TIMEOUT_SECONDS)
        self.transport.abort()

    def _cancel_deadline(self) -> None:
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None


@functools.lru_cache(maxsize=1)
def _date_headers(unix_seconds: int) -> list[tuple[bytes, bytes]]:
    return [(b"date", formatdate(unix_seconds, usegmt=True).encode())]
