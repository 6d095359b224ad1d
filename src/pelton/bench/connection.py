"""A small HTTP/1.1 client for event streams: keep-alive connections with httptools as the parser.

A load generator shares the machine with the server under test, so its cost per chunk distorts what it measures.
Per streamed chunk httpx 0.28 takes about 120 us of processor time, this client 17 us (benchmarks/client_cost.py).
"""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools

import pelton

EventSink = Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete response. `body` is empty when its events went to a sink."""

    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens. `prefix` precedes every path, without a slash at its end."""

    host: str
    port: int
    tls: bool
    prefix: str

    @classmethod
    def parse(cls, base_url: str) -> "Address":
        """From `http://host:port`, with or without the `/v1` that OpenAI clients put at the end."""
        try:
            parts = urlsplit(base_url if "://" in base_url else f"http://{base_url}")
            port = parts.port
        except ValueError as error:
            raise ValueError(f"base URL {base_url!r}: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"base URL {base_url!r} must look like http://127.0.0.1:8000")
        tls = parts.scheme == "https"
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname, port or (443 if tls else 80), tls, prefix)


class ClosedBeforeResponseError(ConnectionError):
    """The server closed the connection without answering: safe to send again on a new one."""


class Connection(asyncio.Protocol):
    """One connection, one request at a time. Events are handed out within the read callback, before any other task."""

    def __init__(self) -> None:
        self.usable = False
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._done: asyncio.Future[Reply] | None = None
        self._sink: EventSink | None = None
        self._body = bytearray()
        self._answered = False
        self._ends_by_closing = False  # a body without a length lasts until the connection closes

    async def send(self, request: bytes, sink: EventSink | None) -> Reply:
        """Send a serialized request and wait for the whole response; events of a 200 go to `sink`.

        Raises:
            ConnectionError: the connection broke. A cancelled call closes it.
        """
        assert self._transport is not None
        assert self._done is None
        self._done = asyncio.get_running_loop().create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._sink, self._answered, self._ends_by_closing = sink, False, True
        self._body.clear()
        self._transport.write(request)
        try:
            return await self._done
        except BaseException:
            self.close()
            raise
        finally:
            self._done = None

    def close(self) -> None:
        self.usable = False
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own class does not derive from it
        self.usable = True

    def data_received(self, data: bytes) -> None:
        self._answered = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ConnectionError(f"not an HTTP response: {error}"))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        if self._answered and self._ends_by_closing and exc is None and self._parser.get_status_code():
            self.on_message_complete()
        elif self._answered:
            self._fail(ConnectionError("the server closed the connection in the middle of a response"))
        else:
            self._fail(ClosedBeforeResponseError(str(exc or "the server closed the connection without answering")))

    # Called by httptools within feed_data.

    def on_header(self, name: bytes, _value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._ends_by_closing = False

    def on_headers_complete(self) -> None:
        if self._parser.get_status_code() != 200:
            self._sink = None

    def on_body(self, body: bytes) -> None:
        self._body += body
        if self._sink is not None:
            self._hand_out_events(self._sink)

    def on_message_complete(self) -> None:
        self.usable = self.usable and self._parser.should_keep_alive()
        if self._done is not None and not self._done.done():
            self._done.set_result(Reply(self._parser.get_status_code(), bytes(self._body)))

    def _hand_out_events(self, sink: EventSink) -> None:
        """Pass on the `data:` line of each complete event and keep the rest. Comments (keep-alives) are dropped."""
        if b"\r" in self._body:
            self._body = self._body.replace(b"\r\n", b"\n")
        *events, rest = self._body.split(b"\n\n")
        for event in events:
            data = event.lstrip(b"\n")
            if data.startswith(b"data:"):
                sink(bytes(data[5:].strip()))
        self._body = rest

    def _fail(self, error: Exception) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)


class HttpClient:
    """Keep-alive connections to one server, opened as needed and reused."""

    def __init__(self, address: Address, api_key: str | None = None) -> None:
        self._address = address
        self._tls = ssl.create_default_context() if address.tls else None
        authorization = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
        self._headers = (
            f"Host: {address.host}:{address.port}\r\nUser-Agent: pelton/{pelton.__version__}\r\n{authorization}"
        )
        self._idle: list[Connection] = []

    async def get(self, path: str) -> Reply:
        return await self._send(self._serialize("GET", path, b""), None)

    async def post(self, path: str, body: bytes, sink: EventSink | None = None) -> Reply:
        """POST a JSON body; the events of a streamed answer go to `sink` as they arrive."""
        return await self._send(self._serialize("POST", path, body), sink)

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def _send(self, request: bytes, sink: EventSink | None) -> Reply:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                try:
                    return await self._send_on(connection, request, sink)
                except ClosedBeforeResponseError:  # the server had given up on the idle connection
                    continue
        return await self._send_on(await self._connect(), request, sink)

    async def _send_on(self, connection: Connection, request: bytes, sink: EventSink | None) -> Reply:
        reply = await connection.send(request, sink)
        if connection.usable:
            self._idle.append(connection)
        return reply

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        address = self._address
        _, connection = await loop.create_connection(Connection, address.host, address.port, ssl=self._tls)
        return connection

    def _serialize(self, method: str, path: str, body: bytes) -> bytes:
        content = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if method == "POST" else ""
        head = f"{method} {self._address.prefix}{path} HTTP/1.1\r\n{self._headers}{content}\r\n"
        return head.encode("latin-1") + body
