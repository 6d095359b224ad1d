"""The canary: a real server with the embedded model that has to answer after whatever was done to it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from fakes import free_port

ANSWER_SECONDS = 5.0
START_SECONDS = 60.0

# Greedy. Each token leads the next likely one by at least 1.5 in logprob, in every dtype, weight format and instruction
# set, so that rounding cannot change the answer.
_REQUEST = {"prompt": "1 2 3 4 5 6 7 8 9 10 11 12 13 1", "max_tokens": 12, "temperature": 0}
_ANSWER = "4 15 16 17 1"
# A small cache, all of whose memory has been used after a few requests; one thread, because several that wait for each
# other take many times longer on a busy machine.
_SETTINGS = ("--max-model-len", "2048", "--kv-cache-memory", "128M", "--num-threads", "1")


@dataclass(frozen=True, slots=True)
class Canary:
    """A server under test, shared by all tests of the session: whatever they ask of it, they must not stop it.

    `client` has its URL, no API key is needed. The context is 2,048 tokens.
    """

    url: str
    client: httpx.Client
    process: "subprocess.Popen[bytes]"
    log: Path

    def check(self) -> None:
        """Fail unless the fixed request gets its recorded answer in time: the server and its engine are unharmed."""
        try:
            response = self.client.post("/v1/completions", json=_REQUEST, timeout=ANSWER_SECONDS)
        except httpx.HTTPError as error:
            raise AssertionError(f"the canary is silent ({error!r}):\n{self._end_of_log()}") from error
        assert response.status_code == 200, f"{response.text}\n{self._end_of_log()}"
        choice = response.json()["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == (_ANSWER, "length"), self._end_of_log()

    def memory_bytes(self) -> int:
        """Memory that the server and its engine hold and do not share."""
        return sum(map(_unshared_bytes, [self.process.pid, *_children(self.process.pid)]))

    def gauge(self, name: str) -> float:
        """A series of /metrics by its full name without labels, such as `pelton:num_requests_running`."""
        lines = self.client.get("/metrics").text.splitlines()
        values = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name}{{", f"{name} "))]
        assert len(values) == 1, f"{name}: {values}"
        return values[0]

    def _end_of_log(self) -> str:
        return self.log.read_text()[-5000:]


@contextmanager
def running_canary(folder: Path, *arguments: str) -> Iterator[Canary]:
    """A server of one's own, with further flags; most tests share the fixture `canary`. Ends it by SIGTERM."""
    port, log = free_port(), folder / "canary.log"
    program = str(Path(sys.executable).with_name("pelton"))
    command = [program, "serve", "--port", str(port), *_SETTINGS]
    with (
        log.open("wb") as output,
        subprocess.Popen([*command, *arguments], stdout=output, stderr=subprocess.STDOUT) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):
        canary = Canary(f"http://127.0.0.1:{port}", client, process, log)
        try:
            _wait_healthy(canary)
            yield canary
            process.send_signal(signal.SIGTERM)
            assert process.wait(45) == 0, log.read_text()
        finally:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)


def _wait_healthy(canary: Canary) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert canary.process.poll() is None, canary.log.read_text()
        try:
            if canary.client.get("/health", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise AssertionError(f"not healthy after {START_SECONDS:g} s:\n{canary.log.read_text()}")


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _unshared_bytes(pid: int) -> int:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024
