"""Where an engine runs: a child process on the other end of a socket pair."""

import logging
import os
import socket
import subprocess
import sys
from typing import Protocol

logger = logging.getLogger(__name__)

_STOP_SECONDS = 3.0


class EngineHost(Protocol):
    """Starts an engine and gives the socket to it. ProcessHost is the real one; tests run one in a thread."""

    def start(self) -> socket.socket:
        """A connection to a new engine that waits for its Start message."""
        ...

    def stop(self, *, at_once: bool = False) -> None:
        """End the engine, if it still runs. Its socket is already closed, which is its signal to go."""
        ...


class ProcessHost:
    """Runs `python -m pelton.engine`. The process ends when its socket closes, also if this one is killed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._launched: socket.socket | None = None

    def launch(self) -> None:
        """Start the process ahead of `start`, which then returns the connection to it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            command = [sys.executable, "-m", "pelton.engine", str(theirs.fileno())]
            environment = {
                # After an operation of torch, its OpenMP threads would spin on a core that our own workers need.
                "OMP_WAIT_POLICY": "PASSIVE",
                # torch would go through the metadata of every installed package for devices that we don't use.
                "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
                **os.environ,
            }
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=environment
            )
        self._launched = ours

    def start(self) -> socket.socket:
        if self._launched is None:
            self.launch()
        connection, self._launched = self._launched, None
        assert connection is not None
        return connection

    def stop(self, *, at_once: bool = False) -> None:
        if self._process is None:
            return
        if at_once:
            self._process.kill()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            logger.warning("the engine process did not end by itself; killing it")
            self._process.kill()
            self._process.wait()
        self._process = None
