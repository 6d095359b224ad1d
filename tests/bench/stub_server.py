"""A scripted OpenAI-compatible server: streams chunks at given times, and remembers what it was asked."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field


@dataclass
class StubServer:
    """`delays` are seconds before each token of an answer. The first words of a prompt choose special behaviour."""

    delays: Sequence[float] = (0.0, 0.0, 0.0)
    chunked: bool = True
    close_after_answer: bool = False
    usage: bool = True
    tokenize: bool = False
    status: int = 200
    body_of_error: str = '{"error": {"message": "queue is full", "type": "RateLimitError"}}'
    final_event: str | None = None
    requests: list[tuple[str, dict]] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    num_connections: int = 0
    num_open: int = 0
    max_open: int = 0
    port: int = 0
    _tasks: list[asyncio.Task] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["StubServer"]:
        server = await asyncio.start_server(self._serve_connection, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.append(task)
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                lengths = [int(line.split(":")[1]) for line in head.splitlines() if line.startswith("Content-Length")]
                body = json.loads(await reader.readexactly(lengths[0])) if lengths else {}
                path = head.split(" ")[1]
                self.requests.append((path, body))
                self.headers.append(head)
                await self._answer(path, body, writer)
                if self.close_after_answer:
                    break

    async def _answer(self, path: str, body: dict, writer: asyncio.StreamWriter) -> None:
        if path.endswith("/v1/models"):
            self._reply(writer, 200, '{"object": "list", "data": [{"id": "stub", "object": "model"}]}')
        elif path.endswith("/tokenize"):
            self._tokenize(body, writer)
        elif self.status != 200:
            self._reply(writer, self.status, self.body_of_error)
        else:
            self.num_open += 1
            self.max_open = max(self.max_open, self.num_open)
            await self._stream(path.endswith("/chat/completions"), body, writer)
            self.num_open -= 1

    def _tokenize(self, body: dict, writer: asyncio.StreamWriter) -> None:
        """Counts a beginning-of-sequence token and two tokens for each word of six letters or more."""
        if not self.tokenize:
            self._reply(writer, 404, '{"error": {"message": "no such route"}}')
            return
        text = body["prompt"] if "prompt" in body else body["messages"][0]["content"]
        count = 1 + sum(2 if len(word) >= 6 else 1 for word in text.split())
        self._reply(writer, 200, json.dumps({"count": count}))

    def _reply(self, writer: asyncio.StreamWriter, status: int, body: str) -> None:
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write((head + body).encode())

    async def _stream(self, chat: bool, body: dict, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
        writer.write(b"Transfer-Encoding: chunked\r\n\r\n" if self.chunked else b"Connection: close\r\n\r\n")
        if chat:
            await self._event(writer, {"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        for delay in self.delays:
            if delay:
                await asyncio.sleep(delay)
            await self._event(writer, {"choices": [{"delta": {"content": "a"}} if chat else {"text": "a"}]})
        final = {"finish_reason": "length"} | ({"delta": {}} if chat else {"text": ""})
        if self.final_event is None:
            await self._event(writer, {"choices": [final]})
        else:
            await self._raw_event(writer, self.final_event)
        if self.usage:
            usage = {"prompt_tokens": 7, "completion_tokens": 2 * len(self.delays)}
            await self._event(writer, {"choices": [], "usage": usage})
        await self._raw_event(writer, "[DONE]")
        if self.chunked:
            writer.write(b"0\r\n\r\n")
        else:
            writer.close()

    async def _event(self, writer: asyncio.StreamWriter, data: dict) -> None:
        await self._raw_event(writer, json.dumps(data))

    async def _raw_event(self, writer: asyncio.StreamWriter, data: str) -> None:
        """In two pieces, as networks cut: the second begins within the JSON."""
        event = f": keep-alive\n\ndata: {data}\n\n".encode()
        framed = f"{len(event):x}\r\n".encode() + event + b"\r\n" if self.chunked else event
        writer.write(framed[:30])
        await asyncio.sleep(0)
        writer.write(framed[30:])
        await writer.drain()
