"""The engine process: the step loop on one end of a Unix socket."""

import gc
import logging
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from pelton.engine.build import build_engine
from pelton.engine.engine import Engine
from pelton.engine.messages import Abort, Add, Failed, Framing, Outputs, Ready, Start, ToEngine, frame
from pelton.types import Output

logger = logging.getLogger(__name__)

_READ_BYTES = 1 << 20


def serve_engine(engine: Engine, connection: socket.socket, framing: Framing) -> None:
    """Run steps while there is work and take messages in between, until the other end closes.

    Writes never wait for the reader: what the socket does not take is kept and offered again after the next step.
    """
    loop = _Loop(engine, connection, framing)
    while loop.exchange():
        loop.step()


class _Loop:
    def __init__(self, engine: Engine, connection: socket.socket, framing: Framing) -> None:
        connection.setblocking(False)
        self._engine = engine
        self._connection = connection
        self._framing = framing
        self._unsent = bytearray()

    def exchange(self) -> bool:
        """Read and write what the socket allows; wait when there is nothing to compute. False when it is closed."""
        timeout = 0 if self._engine.has_work else None
        writers = [self._connection] if self._unsent else []
        readable, writable, _ = select.select([self._connection], writers, [], timeout)
        try:
            if writable:
                del self._unsent[: self._connection.send(self._unsent)]
            if readable:
                data = self._connection.recv(_READ_BYTES)
                if not data:
                    return False
                self._take(self._framing.feed(data))
        except (BrokenPipeError, ConnectionResetError):
            return False
        except BlockingIOError:
            pass
        return True

    def step(self) -> None:
        if self._engine.has_work:
            self._send(self._engine.step())

    def _take(self, messages: list[ToEngine]) -> None:
        outputs: list[Output | None] = []
        for message in messages:
            if isinstance(message, Add):
                outputs.append(
                    self._engine.add(
                        message.request_id,
                        message.prompt_ids,
                        message.params,
                        priority=message.priority,
                        salt=message.salt,
                    )
                )
            elif isinstance(message, Abort):
                outputs += [self._engine.abort(request_id) for request_id in message.request_ids]
        ended = [output for output in outputs if output is not None]
        if ended:
            self._send(ended)

    def _send(self, outputs: list[Output]) -> None:
        self._unsent += frame(Outputs(outputs, self._engine.stats))


def run(connection: socket.socket, build: Callable[[Start], Engine]) -> int:
    """Take the Start message, build the engine, serve it. Returns the exit code."""
    framing = Framing(ToEngine)
    start = _read_start(connection, framing)
    if start is None:
        return 0
    try:
        engine = build(start)
    except (ValueError, OSError, MemoryError) as error:
        connection.sendall(frame(Failed(str(error) or type(error).__name__)))
        return 1
    gc.freeze()  # or a full collection would stop a step for 0.1 s to find that torch's modules are still there
    gc.enable()
    connection.sendall(frame(Ready(engine.stats)))
    serve_engine(engine, connection, framing)
    return 0


def _read_start(connection: socket.socket, framing: Framing) -> Start | None:
    while data := connection.recv(_READ_BYTES):
        for message in framing.feed(data):
            assert isinstance(message, Start), "the first message must be Start"
            return message
    return None


def _build(start: Start) -> Engine:
    logging.getLogger().setLevel(start.config.log_level.upper())
    return build_engine(start.config, start.info, Path(start.path))


def main() -> None:
    # Signals go to the whole group, from a terminal or a service manager. The server decides when this process ends, by
    # closing the socket: until then requests drain.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s engine: %(message)s", stream=sys.stderr)
    connection = socket.socket(fileno=int(sys.argv[1]))
    code = run(connection, _build)
    # Nothing is left to save, and tearing torch down takes longer than the process is wanted.
    logging.shutdown()
    os._exit(code)
