"""What comes in over the wire: unfinished, endless and malformed requests get an answer, and nobody waits for them."""

import asyncio
import json

import pytest

from pelton.http import protocol

from fakes import URL, FakeEngine, Running, raw_connection, serving, until

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
BODY = b'{"prompt": "hi", "max_tokens": 1}'


@pytest.fixture
def engine() -> FakeEngine:
    engine = FakeEngine()
    engine.script = engine.ids("canary")
    return engine


def status_of(answer: bytes) -> int:
    head, _, body = answer.partition(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    assert status < 500
    if status >= 400:
        assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}
        assert json.loads(body)["error"]["code"] == status
    return status


async def assert_canary(running: Running) -> None:
    answer = await running.client.post(URL, json={"prompt": "hi"})
    assert answer.json()["choices"][0]["text"] == "canary"


async def ask(running: Running, *pieces: bytes, seconds: float = 0.0) -> bytes:
    """Send the pieces, `seconds` apart, and read until the server closes."""
    async with raw_connection(running.engine) as (reader, writer):
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(seconds)
        return await asyncio.wait_for(reader.read(), 10)


REFUSED = {
    "10,000 headers": (431, HEAD + b"".join(b"x-%d: 1\r\n" % index for index in range(10_000)) + b"\r\n"),
    "10,000 large headers": (431, HEAD + b"".join(b"x-%d: %b\r\n" % (i, b"y" * 900) for i in range(10_000)) + b"\r\n"),
    "an endless header": (431, HEAD + b"x: " + b"y" * 3_000_000),
    "an endless URL": (431, b"GET /" + b"x" * 3_000_000),
    "a long URL": (431, b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"),
    "no HTTP": (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200),
    "a negative length": (400, HEAD + b"Content-Length: -1\r\n\r\n" + BODY),
    "a length that is no number": (400, HEAD + b"Content-Length: ten\r\n\r\n" + BODY),
    "two lengths": (400, HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n" + BODY),
    "a length and chunks": (400, HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "a chunk without a size": (400, HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n"),
    "a header without a name": (400, b"GET / HTTP/1.1\r\n: x\r\n\r\n"),
    "a NUL in a header": (400, b"GET / HTTP/1.1\r\nx: a\x00b\r\n\r\n"),
    "a path that is no ASCII": (400, "GET /ä HTTP/1.1\r\nHost: x\r\n\r\n".encode()),
    "another protocol's version": (400, b"GET / HTTP/3.7\r\nHost: x\r\n\r\n"),
    "an unknown method": (400, b"BREW /pot HTTP/1.1\r\nHost: x\r\n\r\n"),
    "a tunnel": (400, b"CONNECT example.com:443 HTTP/1.1\r\nHost: x\r\n\r\n"),
}


@pytest.mark.parametrize(("status", "request_bytes"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_malformed_or_too_large_is_refused(engine: FakeEngine, status: int, request_bytes: bytes):
    async def scenario(running: Running) -> None:
        assert status_of(await ask(running, request_bytes)) == status
        assert engine.calls == []
        await assert_canary(running)

    assert serving(engine, scenario) == 0


def test_a_body_too_large_is_answered_while_it_comes(engine: FakeEngine):
    async def scenario(running: Running) -> None:
        body = b'{"prompt": "' + b"x" * 50_000_000 + b'"}'
        headers = {"Content-Type": "application/json"}
        assert (await running.client.post(URL, content=body, headers=headers)).status_code == 413
        await assert_canary(running)

    assert serving(engine, scenario) == 0


def test_a_body_in_chunks_of_one_byte_is_a_body(engine: FakeEngine):
    async def scenario(running: Running) -> None:
        chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in BODY)
        async with raw_connection(engine) as (reader, writer):
            writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")

    assert serving(engine, scenario) == 0


UNFINISHED = {
    "a request line": (b"POST /v1/comp",),
    "headers, a byte at a time": (HEAD[:60], *(b"x" for _ in range(8))),
    "a body": (HEAD + b"Content-Length: 100\r\n\r\n" + BODY,),
    "a body in chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n",),
}


@pytest.mark.parametrize("pieces", UNFINISHED.values(), ids=UNFINISHED.keys())
def test_a_client_that_stops_in_a_request_gets_a_408(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, pieces: tuple[bytes, ...]
):
    monkeypatch.setattr(protocol, "READ_TIMEOUT_SECONDS", 0.4)

    async def scenario(running: Running) -> None:
        assert status_of(await ask(running, *pieces, seconds=0.1)) == 408
        await assert_canary(running)
        load = await running.client.get("/load")
        assert load.json() == {"server_load": 0}

    assert serving(engine, scenario) == 0


def test_a_slow_body_that_goes_on_is_read_to_its_end(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(protocol, "READ_TIMEOUT_SECONDS", 0.5)
    pieces = [BODY[start : start + 3] for start in range(0, len(BODY), 3)]

    async def scenario(running: Running) -> None:
        head = HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(BODY)
        assert status_of(await ask(running, head, *pieces, seconds=0.1)) == 200

    assert serving(engine, scenario) == 0


def test_connections_without_a_request_and_answered_early_are_closed_in_silence(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(protocol, "READ_TIMEOUT_SECONDS", 0.2)

    async def scenario(running: Running) -> None:
        assert await ask(running) == b""
        answer = await ask(running, b"POST /nope HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc")
        assert answer.count(b"HTTP/1.1 ") == 1
        assert answer.startswith(b"HTTP/1.1 404")

    assert serving(engine, scenario) == 0


def test_a_connection_kept_alive_has_time_between_requests(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(protocol, "READ_TIMEOUT_SECONDS", 0.2)
    whole = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY

    async def scenario(running: Running) -> None:
        async with raw_connection(engine) as (reader, writer):
            for _ in range(2):
                writer.write(whole)
                answer = await reader.readuntil(b"}}")
                assert b"HTTP/1.1 200" in answer
                await reader.read(10)
                await asyncio.sleep(0.5)
            writer.write(whole[:50])
            assert (await reader.read(100)).startswith(b"HTTP/1.1 408")

    assert serving(engine, scenario) == 0


def test_a_stream_is_not_cut_by_the_time_for_reading(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(protocol, "READ_TIMEOUT_SECONDS", 0.2)
    engine.delay = 0.1

    async def scenario(running: Running) -> None:
        body = {"prompt": "hi", "max_tokens": 8, "ignore_eos": True, "stream": True}
        answer = await running.client.post(URL, json=body)
        assert answer.text.endswith("data: [DONE]\n\n")
        assert '"finish_reason":"length"' in answer.text

    assert serving(engine, scenario) == 0


def test_many_slow_clients_at_once_keep_nobody_waiting(engine: FakeEngine):
    async def scenario(running: Running) -> None:
        connections = [await asyncio.open_connection("127.0.0.1", engine.config.port) for _ in range(200)]
        for _, writer in connections:
            writer.write(HEAD[:40])
        await assert_canary(running)
        for _, writer in connections:
            writer.transport.abort()
        await until(lambda: engine.num_live == 0)

    assert serving(engine, scenario) == 0
