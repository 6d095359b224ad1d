"""`pelton serve` as a process of its own: start it, ask it, read its gauges, end it."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from fakes import free_port

CANARY = {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 8, "seed": 1}
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")


@dataclass
class LiveServer:
    """A server process. `ready` waits for it; until then it may still be loading."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path
    answer: str = ""  # the canary's recorded answer

    def ready(self, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()
            try:
                if httpx.get(f"{self.url}/health", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        pytest.fail(f"not healthy after {seconds} s:\n{self.log.read_text()}")

    def post(self, path: str, body: object, **options: Any) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", json=body, timeout=60, **options)

    def complete(self, **fields: Any) -> dict[str, Any]:
        response = self.post("/v1/completions", fields)
        assert response.status_code == 200, response.text
        return response.json()

    def canary(self) -> None:
        """A fixed greedy request must give its recorded answer within 5 s, whatever came before."""
        started = time.monotonic()
        text = self.complete(**CANARY)["choices"][0]["text"]
        self.answer = self.answer or text
        assert "Paris" in text
        assert text == self.answer
        assert time.monotonic() - started < 5

    def metrics(self) -> dict[str, float]:
        """Every series by its name, labels left out but for `finished_reason` and `le`."""
        found: dict[str, float] = {}
        for line in httpx.get(f"{self.url}/metrics", timeout=10).text.splitlines():
            if match := re.match(r"([\w:]+)(\{[^}]*\})? (\S+)$", line):
                labels = dict(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))
                kept = [labels[name] for name in ("finished_reason", "le", "status") if name in labels]
                found[" ".join([match[1], *kept])] = float(match[3])
        return found

    def idle(self, seconds: float = 10) -> None:
        """Wait until the gauges are back at 0."""
        deadline = time.monotonic() + seconds
        while any(self.metrics()[f"pelton:{name}"] for name in GAUGES):
            assert time.monotonic() < deadline, "gauges do not return to 0"
            time.sleep(0.05)

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)


@contextmanager
def launched(log: Path, *arguments: str) -> Iterator[LiveServer]:
    """`pelton serve` with these arguments; killed at the end if it still runs."""
    port = free_port()
    command = [sys.executable, "-m", "pelton.cli", "serve", "--port", str(port), "--num-threads", "1", *arguments]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
        try:
            yield LiveServer(process, f"http://127.0.0.1:{port}", log)
        finally:
            if process.poll() is None:
                process.kill()
