"""The grammar checker's process: reads constraints from standard input, answers on standard output, ends with them."""

import contextlib
import os
import resource
import signal
import sys
import threading

import msgspec

from pelton.errors import RequestError
from pelton.structured.check import Checker
from pelton.structured.messages import Compiled, Constraint, Vocabulary

# A grammar that overflows this stack is refused, so the engine, which has four times of it, need not fear any.
_STACK_BYTES = 2 * 1024 * 1024
_MEMORY_BYTES = 1024 * 1024 * 1024
_NICENESS = 5  # the engine's step comes first


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server's to handle; it closes our input
    os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(ValueError, OSError):  # not on every system
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    threading.stack_size(_STACK_BYTES)
    thread = threading.Thread(target=_serve)
    thread.start()
    thread.join()


def _serve() -> None:
    lines = iter(sys.stdin.buffer.readline, b"")
    checker = Checker(msgspec.json.decode(next(lines), type=Vocabulary))
    _answer(Compiled())
    decoder = msgspec.json.Decoder(Constraint)
    for line in lines:
        _answer(_compiled(checker, decoder.decode(line)))


def _compiled(checker: Checker, constraint: Constraint) -> Compiled:
    try:
        return Compiled(grammar=checker.checked(constraint))
    except RequestError as error:
        return Compiled(error=error.message, param=error.param)
    except (MemoryError, RecursionError):
        return Compiled(error=f"{constraint.param}: it is too complex to compile", param=constraint.param)


def _answer(compiled: Compiled) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(compiled) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
