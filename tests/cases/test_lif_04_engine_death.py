"""An engine process that is killed ends its streams with an error, and a new one answers soon after.

Reported: streams that hang for ever, a health check that stays green, a server that has to be restarted by hand
(vllm#39863, vllm#21728, vllm#11996).
"""

import json
import os
import signal
import threading
import time
from pathlib import Path

import httpx
import pytest

from canary import Canary, running_canary

pytestmark = pytest.mark.e2e

BODY = {"prompt": [40, 41], "max_tokens": 1500, "ignore_eos": True, "stream": True}


def engine_pid(canary: Canary) -> int:
    pid = canary.process.pid
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        if b"pelton.engine" in Path(f"/proc/{child}/cmdline").read_bytes():
            return int(child)
    raise AssertionError("no engine process")


def test_lif_04_streams_end_with_an_error_and_a_new_engine_serves(tmp_path: Path):
    with running_canary(tmp_path) as canary:
        canary.check()
        answers: list[list[str]] = []

        def read() -> None:
            with httpx.stream("POST", f"{canary.url}/v1/completions", json=BODY, timeout=30) as response:
                answers.append([line for line in response.iter_lines() if line])

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        started = time.monotonic()
        while canary.gauge("pelton:num_requests_running") < 3:
            assert time.monotonic() - started < 20
            time.sleep(0.02)
        first = engine_pid(canary)
        os.kill(first, signal.SIGKILL)
        for thread in threads:
            thread.join(5)
            assert not thread.is_alive(), "a stream hangs"
        for lines in answers:
            assert lines[-1] == "data: [DONE]"
            error = json.loads(lines[-2].removeprefix("data: "))["error"]
            assert (error["code"], error["type"]) == (503, "ServiceUnavailableError")
        assert canary.client.get("/health").status_code in (200, 503)
        started = time.monotonic()
        while canary.client.get("/health").status_code != 200:
            assert time.monotonic() - started < 30
            time.sleep(0.05)
        assert engine_pid(canary) != first
        canary.check()
        assert canary.gauge("pelton:num_requests_running") == 0
