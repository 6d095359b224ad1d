"""What tests do with a real server beside the canary: ask it, read its metrics, start one and look while it loads."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from canary import Canary
from fakes import free_port

_GAUGES = ("pelton:num_requests_running", "pelton:num_requests_waiting", "pelton:kv_cache_usage_perc")
_KEPT_LABELS = ("finished_reason", "le", "status")


def complete(canary: Canary, **fields: Any) -> dict[str, Any]:
    """The answer of /v1/completions."""
    response = canary.client.post("/v1/completions", json=fields)
    assert response.status_code == 200, response.text
    return response.json()


def metrics(client: httpx.Client) -> dict[str, float]:
    """Every series by its name and the labels that tell its kind, such as "pelton:request_success_total stop"."""
    return metrics_of(client.get("/metrics"))


def metrics_of(response: httpx.Response) -> dict[str, float]:
    """The same of an answer of /metrics."""
    found: dict[str, float] = {}
    for line in response.text.splitlines():
        if match := re.match(r"([\w:]+)(\{[^}]*\})? (\S+)$", line):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))
            found[" ".join([match[1], *(labels[name] for name in _KEPT_LABELS if name in labels)])] = float(match[3])
    return found


def wait_idle(client: httpx.Client, seconds: float = 10) -> None:
    """Until nothing runs, nothing waits and every page is free."""
    deadline = time.monotonic() + seconds
    while any(metrics(client)[name] for name in _GAUGES):
        assert time.monotonic() < deadline, "the gauges do not return to 0"
        time.sleep(0.05)


@contextmanager
def launched(log: Path, *arguments: str) -> Iterator[tuple["subprocess.Popen[bytes]", str]]:
    """`pelton serve` just after its start, and its URL. Killed at the end if it still runs."""
    port = free_port()
    command = [str(Path(sys.executable).with_name("pelton")), "serve", "--port", str(port), *arguments]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
        try:
            yield process, f"http://127.0.0.1:{port}"
        finally:
            if process.poll() is None:
                process.kill()
