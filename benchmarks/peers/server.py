"""A process under test, with all that it starts: launching, stopping, memory and processor time. Linux only."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from peers.catalog import Engine

STOP_SECONDS = 40.0
LOG_LINES = 15


class Server:
    """A running engine. `started` is the clock time (`time.perf_counter`) of its launch."""

    def __init__(self, process: subprocess.Popen[str], port: int, log: Path, started: float) -> None:
        self.process = process
        self.port = port
        self.log = log
        self.started = started

    def check(self) -> None:
        """Raise RuntimeError with the end of its log if the process has ended."""
        if self.process.poll() is not None:
            raise RuntimeError(f"it ended with exit code {self.process.returncode}:\n{self.log_tail()}")

    def log_tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_LINES:])

    def processes(self) -> list[int]:
        """The process and all its descendants."""
        parents: dict[int, list[int]] = {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and (fields := stat_fields(int(folder.name))):
                parents.setdefault(int(fields[1]), []).append(int(folder.name))
        found = [self.process.pid]
        for pid in found:  # grows while it is walked
            found += parents.get(pid, [])
        return found

    def memory(self) -> int:
        """Bytes in use (PSS: a page shared by n processes counts 1/n for each), files mapped included."""
        return sum(map(proportional_set_size, self.processes()))

    def cpu_seconds(self) -> float:
        """Processor time of all living processes so far."""
        ticks = 0
        for pid in self.processes():
            if fields := stat_fields(pid):
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """End it and whatever it left behind."""
        everything = self.processes()
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_SECONDS)
        for pid in everything:
            if pid != self.process.pid or self.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def stat_fields(pid: int) -> list[str]:
    """/proc/PID/stat after the command's name: state, parent, ...; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def proportional_set_size(pid: int) -> int:
    """Bytes; 0 if there is no such process."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def running(engine: Engine, logs: Path) -> Iterator[Server]:
    """The engine as a process of its own, ended at the end of the context. Its log lies in `logs`."""
    logs.mkdir(parents=True, exist_ok=True)
    port, log = free_port(), logs / f"{engine.name}.log"
    command = [argument.replace("{port}", str(port)) for argument in engine.command]
    pipe = None if engine.speaks_http else subprocess.PIPE
    with log.open("w") as output:
        started = time.perf_counter()
        process = subprocess.Popen(
            command,
            stdin=pipe or subprocess.DEVNULL,
            stdout=pipe or output,
            stderr=output,
            text=True,
            env=os.environ | engine.environment,
        )
        server = Server(process, port, log, started)
        try:
            yield server
        finally:
            server.stop()


def busy_seconds() -> float:
    """Processor time of the whole machine so far, all that is not idle or waiting."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def other_load(seconds: float = 1.0) -> float:
    """Cores that others keep busy, over the next `seconds`; disturbs what is measured if above some 0.05."""
    busy, begun = busy_seconds(), time.perf_counter()
    time.sleep(seconds)
    return (busy_seconds() - busy) / (time.perf_counter() - begun)
