"""SIGTERM lets running requests end, refuses new ones, and leaves no process behind, whenever it comes.

Reported: streams cut in the middle, clients that wait for ever, readiness that stays green while draining, an engine
process that outlives its server (vllm#24885, vllm#36666, vllm#36964, HabanaAI/vllm-fork#1426,
kubernetes-sigs/gateway-api-inference-extension#549). What runs beyond the drain time ends with finish_reason "abort".
"""

import json
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from live import launched, metrics
from tiny_model import save_tiny_model

pytestmark = pytest.mark.e2e

NUM_RUNNING, NUM_QUEUED = 8, 4
FLAGS = ["--max-num-seqs", str(NUM_RUNNING), "--num-threads", "1", "--kv-cache-memory", "64M"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_model(folder)
    return str(folder)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.02)


def is_ready(process: "subprocess.Popen[bytes]", url: str) -> bool:
    assert process.poll() is None
    try:
        return httpx.get(f"{url}/health", timeout=2).status_code == 200
    except httpx.TransportError:
        return False


class Streams:
    """NUM_RUNNING + NUM_QUEUED streams, each read by a thread of its own."""

    def __init__(self, url: str, max_tokens: int) -> None:
        self.ends: list[tuple[str, int]] = []  # (finish_reason or error, number of characters)
        body = {"prompt": [40, 41], "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
        self._threads = [
            threading.Thread(target=self._read, args=(url, body), daemon=True) for _ in range(NUM_RUNNING + NUM_QUEUED)
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, url: str, body: dict[str, Any]) -> None:
        reason, done = "none", False
        num_chunks = 0
        try:
            with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
                for line in response.iter_lines():
                    if line == "data: [DONE]":
                        done = True
                    elif line.startswith("data: "):
                        num_chunks += 1
                        event = json.loads(line[6:])
                        reason = "error" if "error" in event else event["choices"][0]["finish_reason"] or reason
                if response.status_code != 200:
                    reason = str(response.status_code)
        except httpx.TransportError as error:
            reason = f"cut: {error!r}"
        self.ends.append(
            (reason if done or reason.isdigit() or "cut" in reason else f"{reason} without [DONE]", num_chunks)
        )

    def join(self, seconds: float) -> list[str]:
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            assert not thread.is_alive(), "a client hangs"
        return [reason for reason, _ in self.ends]


def test_lif_07_a_drain_that_is_long_enough_completes_everything(tiny: str, tmp_path: Path):
    flags = [*FLAGS, "--shutdown-timeout", "60"]
    with launched(tmp_path / "log", tiny, *flags) as (process, url):
        wait_for(lambda: is_ready(process, url))
        engines = children(process.pid)
        with httpx.Client(base_url=url) as client:
            streams = Streams(url, 480)
            wait_for(lambda: metrics(client)["pelton:num_requests_waiting"] == NUM_QUEUED)
            process.send_signal(signal.SIGTERM)
            wait_for(lambda: client.get("/health").status_code == 503, 2)
            refused = client.post("/v1/completions", json={"prompt": "x"})
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert client.get("/ping").status_code == 200
        assert streams.join(30) == ["length"] * (NUM_RUNNING + NUM_QUEUED)
        assert process.wait(10) == 0, (tmp_path / "log").read_text()
        assert engines and not any(map(is_alive, engines))


@pytest.mark.parametrize("second_signal", [False, True])
def test_lif_07_what_the_drain_time_cuts_short_is_told_so(tmp_path: Path, second_signal: bool):
    """With the embedded model, of which these streams would take a minute."""
    flags = [*FLAGS, "--max-model-len", "2048", "--shutdown-timeout", "60" if second_signal else "1"]
    with launched(tmp_path / "log", *flags) as (process, url):
        wait_for(lambda: is_ready(process, url))
        engines = children(process.pid)
        with httpx.Client(base_url=url) as client:
            streams = Streams(url, 2000)
            wait_for(lambda: metrics(client)["pelton:num_requests_waiting"] == NUM_QUEUED)
        process.send_signal(signal.SIGTERM)
        if second_signal:
            time.sleep(0.3)
            process.send_signal(signal.SIGTERM)
        started = time.monotonic()
        reasons = streams.join(10)
        if second_signal:
            assert all(reason in ("abort", "error", "503") or reason.startswith("cut") for reason in reasons), reasons
        else:
            assert reasons == ["abort"] * (NUM_RUNNING + NUM_QUEUED)
        assert process.wait(10) == 0, (tmp_path / "log").read_text()
        assert time.monotonic() - started < 6
        assert engines and not any(map(is_alive, engines))


@pytest.mark.parametrize("seconds", [0.0, 0.4, 0.8, 1.2])
def test_lif_07_while_the_model_loads_it_ends_server_and_engine_at_once(tiny: str, tmp_path: Path, seconds: float):
    with launched(tmp_path / "log", tiny, *FLAGS) as (process, _):
        wait_for(lambda: children(process.pid))
        engines = children(process.pid)
        time.sleep(seconds)
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 0, (tmp_path / "log").read_text()
        assert not any(map(is_alive, engines)), "the engine outlives its server"
        assert "Traceback" not in (tmp_path / "log").read_text()
