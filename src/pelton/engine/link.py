"""EngineLink: one connection to an engine process, on the event loop."""

import asyncio
import socket
from collections.abc import Callable
from typing import Self, cast

from pelton.engine.messages import Abort, Add, Framing, FromEngine, Start, frame


class EngineLink(asyncio.Protocol):
    """Messages out by `send`, messages in by a callback, all those of one read within one turn of the loop."""

    def __init__(self, on_message: Callable[[FromEngine], None]) -> None:
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._on_message = on_message
        self._framing = Framing(FromEngine)
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, connection: socket.socket, on_message: Callable[[FromEngine], None]) -> Self:
        """Take over a connected socket."""
        loop = asyncio.get_running_loop()
        _, link = await loop.create_unix_connection(lambda: cls(on_message), sock=connection)
        return link

    def send(self, message: Start | Add | Abort) -> None:
        """Never waits: what the socket does not take is kept."""
        assert self._transport is not None
        self._transport.write(frame(message))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own class does not derive from it

    def data_received(self, data: bytes) -> None:
        for message in self._framing.feed(data):
            self._on_message(message)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if not self.closed.done():
            self.closed.set_result(None)
