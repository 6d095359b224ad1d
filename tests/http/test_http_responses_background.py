"""Responses on a real server: in the background, resumed, cancelled, drained; and clients that hang up."""

import asyncio
import dataclasses
import json
from typing import Any

import httpx
import pytest

from pelton.http.openai.responses_api.event_log import EventLog

from bracketed import URL, parse_event_stream, parse_response
from fakes import FakeEngine, Running, serving, until

LONG = {"input": "hi", "max_output_tokens": 1000}


async def fetched(running: Running, response_id: str) -> dict[str, Any]:
    return parse_response(await running.client.get(f"{URL}/{response_id}"))


async def wait_for(running: Running, response_id: str, status: str) -> dict[str, Any]:
    for _ in range(500):
        response = await fetched(running, response_id)
        if response["status"] == status:
            return response
        await asyncio.sleep(0.01)
    raise AssertionError(f"never {status}: {response}")


async def load(running: Running) -> int:
    return (await running.client.get("/load")).json()["server_load"]


def test_a_response_in_the_background_goes_on_by_itself():
    engine = FakeEngine(delay=0.02)
    engine.script = engine.ids("hello world")

    async def scenario(running: Running) -> None:
        queued = parse_response(await running.client.post(URL, json={"input": "hi", "background": True}))
        assert queued["status"] == "queued" and queued["background"] and queued["output"] == []
        assert await load(running) == 1
        await wait_for(running, queued["id"], "in_progress")
        body = {"input": "b", "previous_response_id": queued["id"]}
        early = await running.client.post(URL, json=body)
        assert early.status_code == 400 and "not complete yet" in early.text
        done = await wait_for(running, queued["id"], "completed")
        assert done["output"][0]["content"][0]["text"] == "hello world"
        assert done["usage"]["output_tokens"] == 7
        assert await load(running) == 0
        assert (await running.client.post(URL, json=body)).status_code == 200
        cancelled = parse_response(await running.client.post(f"{URL}/{queued['id']}/cancel"))
        assert cancelled == done

    assert serving(engine, scenario) == 0


def test_a_cancelled_response_keeps_what_there_was():
    engine = FakeEngine(delay=0.005)
    engine.script = engine.ids("a" * 1000)

    async def scenario(running: Running) -> None:
        queued = parse_response(await running.client.post(URL, json={**LONG, "background": True}))
        await until(lambda: engine.num_live == 1)
        await asyncio.sleep(0.05)
        cancelled = parse_response(await running.client.post(f"{URL}/{queued['id']}/cancel"))
        assert cancelled["status"] == "cancelled" and engine.num_live == 0
        (message,) = cancelled["output"]
        text = message["content"][0]["text"]
        assert message["status"] == "incomplete" and 0 < len(text) < 1000
        assert cancelled["usage"]["output_tokens"] == len(text)
        assert await fetched(running, queued["id"]) == cancelled
        assert parse_response(await running.client.post(f"{URL}/{queued['id']}/cancel")) == cancelled
        assert await load(running) == 0

    assert serving(engine, scenario) == 0


def test_deleting_a_running_response_ends_it():
    engine = FakeEngine(delay=0.005)

    async def scenario(running: Running) -> None:
        queued = parse_response(await running.client.post(URL, json={**LONG, "background": True}))
        await until(lambda: engine.num_live == 1)
        assert (await running.client.delete(f"{URL}/{queued['id']}")).json()["deleted"] is True
        assert engine.num_live == 0 and await load(running) == 0
        assert (await running.client.get(f"{URL}/{queued['id']}")).status_code == 404

    assert serving(engine, scenario) == 0


async def read_some(running: Running, body: dict[str, Any], num_events: int) -> list[dict[str, Any]]:
    """The first events of a stream whose client then hangs up."""
    events: list[dict[str, Any]] = []
    async with running.client.stream("POST", URL, json=body) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                events.append(json.loads(line.removeprefix("data: ")))
                if len(events) == num_events:
                    break
    return events


def test_a_stream_in_the_background_can_be_resumed():
    engine = FakeEngine(delay=0.01)
    engine.script = engine.ids("abcdefghij" * 3)

    async def scenario(running: Running) -> None:
        first = await read_some(running, {"input": "hi", "background": True, "stream": True}, 8)
        assert [event["type"] for event in first[:3]] == ["response.created", "response.queued", "response.in_progress"]
        assert [event["response"]["status"] for event in first[:3]] == ["queued", "queued", "in_progress"]
        url = f"{URL}/{first[0]['response']['id']}?stream=true"
        number = first[-1]["sequence_number"]
        live, whole = await asyncio.gather(
            running.client.get(f"{url}&starting_after={number}"), running.client.get(url)
        )
        rest, events = parse_event_stream(live, number + 1), parse_event_stream(whole)
        assert first + rest == events
        assert events[-1]["type"] == "response.completed"
        assert events[-1]["response"]["output"][0]["content"][0]["text"] == "abcdefghij" * 3
        assert parse_event_stream(await running.client.get(url)) == events
        nothing = await running.client.get(f"{url}&starting_after={len(events)}")
        assert parse_event_stream(nothing) == []

    assert serving(engine, scenario) == 0


class Heard:
    """An Outbox that keeps what it is given."""

    def __init__(self) -> None:
        self.events: list[bytes] = []

    def put(self, data: bytes) -> None:
        self.events.append(data)

    def end(self) -> None:
        self.events.append(b"end")


def test_who_has_stopped_listening_hears_no_more():
    log, stays, goes = EventLog(), Heard(), Heard()
    log.put(b"0")
    log.listen(stays, after=-1)
    listening = log.listen(goes, after=0)
    log.put(b"1")
    listening.close()
    log.put(b"2")
    log.end()
    listening.close()
    assert stays.events == [b"0", b"1", b"2", b"end"] and goes.events == [b"1"]
    late = Heard()
    log.listen(late, after=1).close()
    assert late.events == [b"2", b"end"] and log.num_bytes == 3


def test_the_stream_of_a_cancelled_response_ends():
    engine = FakeEngine(delay=0.01)

    async def scenario(running: Running) -> None:
        body = {**LONG, "background": True, "stream": True}
        (created,) = await read_some(running, body, 1)
        url = f"{URL}/{created['response']['id']}"
        stream = asyncio.create_task(running.client.get(f"{url}?stream=true"))
        await asyncio.sleep(0.05)
        cancelled = parse_response(await running.client.post(f"{url}/cancel"))
        events = parse_event_stream(await stream)
        assert events[-1]["type"] == "response.incomplete" and events[-1]["response"] == cancelled

    assert serving(engine, scenario) == 0


def test_an_error_in_the_background_is_kept_as_a_failed_response():
    engine = FakeEngine(delay=0.01, fail_after=0)

    async def scenario(running: Running) -> None:
        queued = parse_response(await running.client.post(URL, json={**LONG, "background": True}))
        failed = await wait_for(running, queued["id"], "failed")
        assert failed["error"] == {"code": "server_error", "message": "Internal server error", "param": None}
        assert await load(running) == 0

    assert serving(engine, scenario) == 0


def test_a_response_whose_client_hangs_up_is_aborted_and_not_kept():
    engine = FakeEngine(delay=0.01)

    async def scenario(running: Running) -> None:
        (created,) = await read_some(running, {**LONG, "stream": True}, 1)
        await until(lambda: engine.num_live == 0)
        assert engine.calls[-1].ended == "abort"
        assert (await running.client.get(f"{URL}/{created['response']['id']}")).status_code == 404
        with pytest.raises(httpx.ReadTimeout):
            await running.client.post(URL, json=LONG, timeout=0.1)
        await until(lambda: engine.num_live == 0)
        assert engine.calls[-1].ended == "abort"

    assert serving(engine, scenario) == 0


def test_draining_waits_for_responses_in_the_background():
    engine = FakeEngine(delay=0.02)
    engine.script = engine.ids("abcdefghijklmnopqrst")

    async def scenario(running: Running) -> None:
        await running.client.post(URL, json={"input": "hi", "background": True})
        running.terminate()
        await until(lambda: engine.num_live == 0)
        assert engine.calls[-1].ended == "stop"

    assert serving(engine, scenario) == 0


def test_responses_in_the_background_are_aborted_at_the_end_of_the_drain():
    engine = FakeEngine(delay=0.02)
    engine.config = dataclasses.replace(engine.config, shutdown_timeout=0.1)

    async def scenario(running: Running) -> None:
        await running.client.post(URL, json={**LONG, "background": True})
        running.terminate()
        await until(lambda: engine.num_live == 0)
        assert engine.calls[-1].ended == "abort"

    assert serving(engine, scenario) == 0


def test_responses_in_the_background_count_for_the_limit_of_their_key():
    engine = FakeEngine(delay=0.01)
    engine.config = dataclasses.replace(engine.config, max_concurrent_requests=1, request_timeout=0.4)

    async def scenario(running: Running) -> None:
        queued = parse_response(await running.client.post(URL, json={**LONG, "background": True}))
        assert (await running.client.post(URL, json=LONG)).status_code == 429
        await running.client.post(f"{URL}/{queued['id']}/cancel")
        queued = parse_response(await running.client.post(URL, json={**LONG, "background": True}))
        failed = await wait_for(running, queued["id"], "failed")
        assert failed["error"]["message"] == "The request was not finished after 0.4 s, the time allowed"
        assert failed["error"]["code"] == "server_error" and engine.num_live == 0
        short = {"input": "hi", "max_output_tokens": 1}
        assert (await running.client.post(URL, json=short)).status_code == 200

    assert serving(engine, scenario) == 0
