"""SIGTERM: new requests get 503, running ones finish in time or end with abort, the exit code is 0."""

import asyncio
import time
from dataclasses import replace

import pytest

from fakes import URL, FakeEngine, Running, parse_events, serving, until


@pytest.mark.parametrize(("timeout", "reason"), [(20.0, "length"), (0.0, "abort")])
def test_api_29_running_requests_end_and_new_ones_are_refused(timeout: float, reason: str):
    engine = FakeEngine(delay=0.02)
    engine.config = replace(engine.config, shutdown_timeout=timeout)
    body = {"prompt": "x", "max_tokens": 30, "ignore_eos": True, "stream": True}

    async def scenario(running: Running) -> None:
        task = asyncio.create_task(running.client.post(URL, json=body))
        await until(lambda: engine.num_live == 1)
        running.terminate()
        started = time.monotonic()
        if timeout:
            await asyncio.sleep(0.05)
            refused = await running.client.post(URL, json=body)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        events = parse_events(await task)
        assert events[-1]["choices"][0]["finish_reason"] == reason
        assert await asyncio.wait_for(running.server, 4) == 0
        assert time.monotonic() - started < 4

    assert serving(engine, scenario) == 0
