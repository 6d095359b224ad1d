"""A client that reads slowly or not at all costs bounded memory, loses no byte of what it gets, and slows nobody down.

Reported: dropped pieces in the middle of a stream, memory that grows with what is not read, one stalled reader that
holds up the others (llama.cpp#28926). The policy: events wait for the client up to a cap, at which its stream ends with
an error; a client that takes nothing for the write timeout is cut off; either frees its pages at once.
"""

import asyncio
import json
import time
from typing import Any

import pytest

from pelton.http import protocol, sse

from fakes import URL, Client, FakeEngine, Running, parse_events, raw_connection, raw_post, serving, until
from fakes import use_small_send_buffers as small_send_buffers

TEXT = "ok 🫠 龜 é 👩‍👩‍👧 end "
BODY: dict[str, Any] = {"prompt": "hi", "max_tokens": 2000, "ignore_eos": True, "stream": True}


def engine_of(num_repeats: int = 100, delay: float = 0.0) -> FakeEngine:
    engine = FakeEngine(delay=delay)
    engine.script = engine.ids(TEXT) * num_repeats
    return engine


def events_in(raw: bytes) -> list[dict[str, Any]]:
    """Of a raw chunked answer: every event whole, every character intact."""
    _, _, rest = raw.partition(b"\r\n\r\n")
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body += rest[: int(size, 16)]
        rest = rest[int(size, 16) + 2 :]
    blocks = body.decode("utf-8").split("\n\n")
    assert blocks.pop() == ""
    assert blocks.pop() == "data: [DONE]"
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    raw = b""
    while not raw.endswith(b"\r\n0\r\n\r\n"):
        piece = await reader.read(65536)
        assert piece, "the connection was cut"
        raw += piece
    return raw


def test_lif_03_a_slow_reader_gets_every_byte(monkeypatch: pytest.MonkeyPatch):
    small_send_buffers(monkeypatch)
    num_tokens = len(FakeEngine().ids(TEXT)) * 40
    expected = Client.of(engine_of()).post(URL, {**BODY, "stream": False, "max_tokens": num_tokens}).json()

    async def scenario(running: Running) -> None:
        async with raw_connection(running.engine) as (reader, writer):
            writer.write(raw_post({**BODY, "max_tokens": num_tokens}))
            raw = b""
            for _ in range(100):  # a byte at a time, in between the stream goes on without its reader
                raw += await reader.read(1)
                await asyncio.sleep(0.005)
            assert running.engine.num_live == 0, "the engine waited for the reader"
            raw += await asyncio.wait_for(rest_of(reader), 10)
        choices = [event["choices"][0] for event in events_in(raw)]
        assert "".join(choice["text"] for choice in choices) == expected["choices"][0]["text"] == TEXT * 40
        assert choices[-1]["finish_reason"] == "length"

    assert serving(engine_of(), scenario) == 0


def test_lif_03_others_are_not_slowed_and_a_stalled_client_is_cut(monkeypatch: pytest.MonkeyPatch):
    small_send_buffers(monkeypatch)
    monkeypatch.setattr(protocol, "WRITE_TIMEOUT_SECONDS", 1.0)
    engine = engine_of(delay=0.001)

    async def scenario(running: Running) -> None:
        async with raw_connection(running.engine) as (_, writer):
            writer.transport.pause_reading()
            writer.write(raw_post({**BODY, "logprobs": 20}))
            await until(lambda: engine.num_live == 1)
            started = time.monotonic()
            bodies = [{**BODY, "max_tokens": 50} for _ in range(16)]
            answers = await asyncio.gather(*(running.client.post(URL, json=body) for body in bodies))
            assert time.monotonic() - started < 2.0
            assert all(parse_events(answer)[-1]["choices"][0]["finish_reason"] == "length" for answer in answers)
            await until(lambda: engine.num_live == 0)
            assert engine.calls[0].ended == "abort"

    assert serving(engine, scenario) == 0


def test_lif_03_what_waits_for_a_client_is_capped(monkeypatch: pytest.MonkeyPatch):
    """At the cap the stream ends: what waits is sent, then an error, and the request's pages are free."""
    small_send_buffers(monkeypatch)
    monkeypatch.setattr(sse, "MAX_WAITING_BYTES", 100_000)
    engine = engine_of(delay=0.0001)

    async def scenario(running: Running) -> None:
        async with raw_connection(running.engine) as (reader, writer):
            writer.transport.pause_reading()
            writer.write(raw_post({**BODY, "logprobs": 20, "n": 2}))
            await until(lambda: len(engine.calls) == 2)
            await until(lambda: engine.num_live == 0)
            assert {call.ended for call in engine.calls} == {"abort"}
            writer.transport.resume_reading()
            raw = await asyncio.wait_for(rest_of(reader), 10)
        *events, last = events_in(raw)
        for index in (0, 1):
            choices = [event["choices"][0] for event in events if event["choices"][0]["index"] == index]
            assert (TEXT * 100).startswith("".join(choice["text"] for choice in choices))
        assert len(raw) < 2_000_000
        assert "too slowly" in last["error"]["message"]
        assert (await running.client.post(URL, json={**BODY, "max_tokens": 5})).status_code == 200

    assert serving(engine, scenario) == 0
