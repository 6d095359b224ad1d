"""The server on a real socket: binding, hang-ups, stalled readers, header limits and shutdown."""

import asyncio
import json
import socket
import stat
import time
from dataclasses import replace
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest

from pelton.config import EngineConfig
from pelton.http import protocol
from pelton.http.listener import bind
from pelton.http.protocol import MAX_HEADER_BYTES

from fakes import (
    URL,
    FakeEngine,
    Running,
    free_port,
    parse_events,
    raw_connection,
    raw_post,
    serving,
    until,
    use_small_send_buffers,
)


def test_a_taken_port_is_a_value_error_with_the_fix():
    config = EngineConfig(port=free_port())
    with bind(config), pytest.raises(ValueError, match=f"port {config.port} is in use; .*--port"):
        bind(config)


def test_an_address_of_another_machine_is_a_value_error():
    with pytest.raises(ValueError, match=r"cannot listen on host 192\.0\.2\.1"):
        bind(EngineConfig(host="192.0.2.1", port=free_port()))


def test_connections_queue_before_anything_serves():
    config = EngineConfig(port=free_port())
    with bind(config), socket.create_connection(("127.0.0.1", config.port), timeout=1):
        pass


def test_a_unix_socket_replaces_a_stale_one_but_not_a_live_one(tmp_path: Path):
    config = EngineConfig(uds=str(tmp_path / "socket"))
    with bind(config), pytest.raises(ValueError, match=r"in use; .*--uds"):
        bind(config)
    with bind(config):
        assert stat.S_ISSOCK((tmp_path / "socket").stat().st_mode)


def test_a_file_in_the_place_of_a_unix_socket_stays(tmp_path: Path):
    (tmp_path / "socket").write_text("precious")
    with pytest.raises(ValueError, match="--uds"):
        bind(EngineConfig(uds=str(tmp_path / "socket")))
    assert (tmp_path / "socket").read_text() == "precious"


def test_a_stream_over_the_wire():
    engine = FakeEngine()
    engine.script = engine.ids("hello world")

    async def scenario(running: Running) -> None:
        events = parse_events(await running.client.post(URL, json={"prompt": "hi", "stream": True}))
        assert "".join(event["choices"][0]["text"] for event in events) == "hello world"
        models = await running.client.get("/v1/models")  # over the same connection
        assert models.status_code == 200
        assert abs(parsedate_to_datetime(models.headers["date"]).timestamp() - time.time()) < 2

    assert serving(engine, scenario) == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("num_choices", [1, 3])
def test_hang_ups_abort_their_requests(stream: bool, num_choices: int):
    async def scenario(running: Running) -> None:
        engine = running.engine
        body = {"prompt": "hi", "max_tokens": 2000, "ignore_eos": True, "stream": stream, "n": num_choices}
        for _ in range(10):
            async with raw_connection(running.engine) as (_, writer):
                writer.write(raw_post(body))
                num_calls = len(engine.calls)
                await until(lambda n=num_calls: len(engine.calls) > n)
        await until(lambda: engine.num_live == 0, seconds=1)
        assert [call.ended for call in engine.calls] == ["abort"] * 10 * num_choices
        assert (await running.client.get("/load")).json() == {"server_load": 0}
        answer = await running.client.post(URL, json={"prompt": "hi", "max_tokens": 2})
        assert answer.status_code == 200
        assert "request_success_total" in (await running.client.get("/metrics")).text

    assert serving(FakeEngine(delay=0.005), scenario) == 0


def test_a_client_that_stops_reading_is_cut_and_nobody_waits_for_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(protocol, "WRITE_TIMEOUT_SECONDS", 0.3)
    use_small_send_buffers(monkeypatch)
    engine = FakeEngine(script=lambda prompt_ids, params: [65] * (params.max_tokens or 0), delay=0.002)
    body = {"prompt": "hi", "max_tokens": 1900, "stream": True, "logprobs": 20, "request_id": "x" * 256, "n": 8}

    async def scenario(running: Running) -> None:
        async with raw_connection(running.engine) as (_, writer):
            writer.write(raw_post(body))
            await until(lambda: len(engine.calls) == 8)
            tasks = [running.client.post(URL, json={"prompt": "hi", "max_tokens": 4}) for _ in range(4)]
            assert [response.status_code for response in await asyncio.gather(*tasks)] == [200] * 4
            await until(lambda: engine.num_live == 0)
            assert [call.ended for call in engine.calls[:8]] == ["abort"] * 8

    assert serving(engine, scenario) == 0


@pytest.mark.parametrize(
    "headers",
    [b"".join(b"x-%d: 1\r\n" % index for index in range(10_000)), b"x: " + b"y" * (MAX_HEADER_BYTES + 1) + b"\r\n"],
    ids=["many", "large"],
)
def test_too_many_headers_are_a_431(headers: bytes):
    async def scenario(running: Running) -> None:
        async with raw_connection(running.engine) as (reader, writer):
            writer.write(b"GET /version HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n")
            answer = await reader.read(4096)
        assert answer.startswith(b"HTTP/1.1 431 ")
        assert json.loads(answer.split(b"\r\n\r\n")[1])["error"]["code"] == 431
        assert (await running.client.get("/version")).status_code == 200

    assert serving(FakeEngine(), scenario) == 0


def test_what_is_not_http_is_a_400_in_the_error_shape():
    async def scenario(running: Running) -> None:
        async with raw_connection(running.engine) as (reader, writer):
            writer.write(b"\x16\x03\x01 hello\r\n\r\n")
            answer = await reader.read(4096)
        assert json.loads(answer.split(b"\r\n\r\n")[1])["error"]["code"] == 400

    assert serving(FakeEngine(), scenario) == 0


def test_a_signal_lets_running_requests_end_and_refuses_new_ones():
    async def scenario(running: Running) -> None:
        engine = running.engine
        body = {"prompt": "hi", "max_tokens": 60, "ignore_eos": True}
        posts = [asyncio.create_task(running.client.post(URL, json={**body, "stream": i % 2 == 0})) for i in range(8)]
        await until(lambda: engine.num_live == 8)
        running.terminate()
        await asyncio.sleep(0.05)
        refused = await running.client.post(URL, json=body)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert (await running.client.get("/health")).status_code == 503
        assert (await running.client.get("/ping")).status_code == 200
        for response in await asyncio.gather(*posts):
            assert response.status_code == 200
            assert '"length"' in response.text
        assert {call.ended for call in engine.calls} == {"length"}

    assert serving(FakeEngine(delay=0.01), scenario) == 0


@pytest.mark.parametrize("timeout", [0.0, 0.2])
def test_what_runs_beyond_the_shutdown_timeout_ends_with_abort(timeout: float):
    async def scenario(running: Running) -> None:
        body = {"prompt": "hi", "max_tokens": 2000, "ignore_eos": True}
        posts = [asyncio.create_task(running.client.post(URL, json={**body, "stream": i % 2 == 0})) for i in range(4)]
        await until(lambda: engine.num_live == 4)
        started = time.monotonic()
        running.terminate()
        for response in await asyncio.gather(*posts):
            assert '"finish_reason":"abort"' in response.text
        assert timeout <= time.monotonic() - started < timeout + 2

    engine = FakeEngine(delay=0.01)
    engine.config = replace(engine.config, shutdown_timeout=timeout)
    assert serving(engine, scenario) == 0


def test_a_second_signal_ends_at_once():
    async def scenario(running: Running) -> None:
        async with raw_connection(running.engine) as (_, writer):
            writer.write(raw_post({"prompt": "hi", "max_tokens": 2000, "ignore_eos": True}))
            await until(lambda: engine.num_live == 1)
            running.terminate()
            await asyncio.sleep(0.05)
            assert engine.num_live == 1
            running.terminate()
            await running.server
            assert engine.num_live == 1  # it was not waited for

    engine = FakeEngine(delay=0.05)
    started = time.monotonic()
    assert serving(engine, scenario) == 0
    assert time.monotonic() - started < 5 < engine.config.shutdown_timeout
