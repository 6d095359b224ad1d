"""A server for clients that live in another environment than the server's.

Run by `make test-e2e` with the Python of the clients' environment. PELTON is the command of the server's.
"""

import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from questions import KEY


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a running server, which ends by SIGTERM with exit code 0 when the tests are done."""
    port = free_port()
    log = tmp_path_factory.mktemp("serve") / "log"
    command = [os.environ["PELTON"], "serve", "--port", str(port), "--api-key", KEY]
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
        try:
            deadline = time.monotonic() + 60
            while not is_healthy(url):
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            yield url
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 0, log.read_text()
        finally:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def base_url(server: str) -> str:
    return f"{server}/v1"


@pytest.fixture
def metric(server: str) -> Callable[[str], float]:
    """Reads the sum of a metric's series."""

    def read(name: str) -> float:
        request = urllib.request.Request(f"{server}/metrics", headers={"Authorization": f"Bearer {KEY}"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            text = answer.read().decode()
        return sum(float(value) for value in re.findall(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", text, re.MULTILINE))

    return read


@pytest.fixture(scope="session")
def node_modules() -> Path:
    """Where the npm packages of node/package-lock.json are installed."""
    folder = Path(__file__).with_name("node")
    subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=folder, check=True, timeout=300)
    return folder
