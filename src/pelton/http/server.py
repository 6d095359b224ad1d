"""uvicorn over a listening socket: drains on the first signal, ends at once on the second."""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Generator
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from pelton.config import EngineConfig
from pelton.engine.protocol import EngineClient
from pelton.http.app import create_app
from pelton.http.gate import Lifecycle
from pelton.http.listener import BACKLOG
from pelton.http.protocol import GuardedProtocol

logger = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 75  # above the idle time of client pools, so that they close first
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
            http=GuardedProtocol,
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
