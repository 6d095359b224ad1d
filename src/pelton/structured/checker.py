"""The server's side of the grammar checker: processes that compile off the event loop, a deadline, and a cache."""

import asyncio
import contextlib
import hashlib
import logging
import os
import queue
import select
import subprocess
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from http import HTTPStatus

import msgspec

from pelton.errors import RequestError
from pelton.structured.limits import MAX_SCHEMA_BYTES
from pelton.structured.messages import Compiled, Constraint, Vocabulary
from pelton.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

COMPILE_SECONDS = 3.0
_START_SECONDS = 30.0
_MAX_MESSAGE_BYTES = 4 * MAX_SCHEMA_BYTES
_NUM_PROCESSES = 2  # so that one hostile schema does not make all others wait for its deadline
_MAX_WAITING = 128
_MAX_CACHED = 512
_MAX_CACHED_CHARACTERS = 16 * 2**20

_Queue = queue.SimpleQueue[tuple[Future[Compiled], bytes, str] | None]


class GrammarChecker:
    """Turns constraints into grammars that the engine can run. Use it from one event loop at a time.

    A process is started when it is first needed; it goes with this object, or by `close`.
    """

    def __init__(self, tokenizer: Tokenizer, *, compile_seconds: float = COMPILE_SECONDS) -> None:
        self._cache = _Cache()
        self._running: dict[bytes, Future[Compiled]] = {}
        self._work: _Queue = queue.SimpleQueue()
        self._processes = [_Process(tokenizer) for _ in range(_NUM_PROCESSES)]
        self._seconds = compile_seconds
        self._has_threads = False
        self.num_compiled = 0
        self.close = weakref.finalize(self, _close, self._work, self._processes)

    @property
    def num_starts(self) -> int:
        """How often a process was started: again after each grammar that ended one."""
        return sum(process.num_starts for process in self._processes)

    async def compile(self, constraint: Constraint) -> str:
        """The grammar for SamplingParams.grammar.

        Raises:
            RequestError: names the field and the reason; 429 where too many others wait.
        """
        message = _message(constraint)
        key = hashlib.blake2b(message, digest_size=16).digest()
        compiled = self._cache.get(key)
        if compiled is None:
            # Shielded, for others may wait for the same grammar when this request's client has gone.
            compiled = await asyncio.shield(asyncio.wrap_future(self._start(key, message, constraint.param)))
            self._cache.put(key, compiled)
        if compiled.grammar is None:
            raise RequestError(compiled.error or "", param=compiled.param)
        return compiled.grammar

    async def check(self, grammar: str, param: str) -> str:
        """The same grammar, which the server made of the field `param`, if it compiles. Raises as `compile`."""
        return await self.compile(Constraint("compiled", grammar, param))

    def _start(self, key: bytes, message: bytes, param: str) -> Future[Compiled]:
        running = self._running.get(key)
        if running is None:
            if len(self._running) >= _MAX_WAITING:
                raise RequestError(
                    "Too many grammars wait to be compiled; try again later", status=HTTPStatus.TOO_MANY_REQUESTS
                )
            self.num_compiled += 1
            running = self._running[key] = Future()
            running.add_done_callback(lambda _: self._running.pop(key, None))
            self._work.put((running, message, param))
            self._start_threads()
        return running

    def _start_threads(self) -> None:
        """They know nothing of this object, so that it can go; and an interpreter that ends does not wait for them."""
        for process in () if self._has_threads else self._processes:
            threading.Thread(target=_serve, args=(self._work, process, self._seconds), daemon=True).start()
        self._has_threads = True


def _serve(work: "_Queue", process: "_Process", seconds: float) -> None:
    """Compile with one process until the queue says None."""
    for future, message, param in iter(work.get, None):
        try:
            future.set_result(_compiled(process, message, param, seconds))
        except Exception as error:  # noqa: BLE001 (it belongs to those who wait)
            future.set_exception(error)


def _compiled(process: "_Process", message: bytes, param: str, seconds: float) -> Compiled:
    try:
        return msgspec.json.decode(process.ask(message, seconds), type=Compiled)
    except TimeoutError:
        return Compiled(error=f"{param}: it is too complex: compiling takes over {seconds:g} s", param=param)
    except EOFError:
        return Compiled(error=f"{param}: it is too complex or too deeply nested to compile", param=param)


def _close(work: "_Queue", processes: Sequence["_Process"]) -> None:
    for process in processes:
        work.put(None)
        process.stop()


class _Process:
    """A process that answers one line with one line; started when it is needed, and again when it has ended."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._process: subprocess.Popen[bytes] | None = None
        self.num_starts = 0

    def ask(self, message: bytes, seconds: float) -> bytes:
        """Raises TimeoutError or, where the process died of it, EOFError; the next call has a new process."""
        if self._process is None or self._process.poll() is not None:
            self.stop()
            self._start()
        return self._exchange(message, seconds)

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _start(self) -> None:
        self.num_starts += 1
        command = [sys.executable, "-m", "pelton.structured"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        try:
            self._exchange(msgspec.json.encode(_vocabulary(self._tokenizer)) + b"\n", _START_SECONDS)
        except (TimeoutError, EOFError) as error:
            raise RuntimeError("the grammar checker does not start") from error

    def _exchange(self, message: bytes, seconds: float) -> bytes:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        deadline = time.monotonic() + seconds
        try:
            with contextlib.suppress(BrokenPipeError):  # reading tells
                process.stdin.write(message)
            answer = bytearray()
            while not answer.endswith(b"\n"):
                ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
                if not ready:
                    raise TimeoutError
                received = os.read(process.stdout.fileno(), 1 << 20)
                if not received:
                    raise EOFError
                answer += received
        except (TimeoutError, EOFError):
            logger.warning("the grammar checker was ended by a grammar; the next one gets a new process")
            self.stop()
            raise
        return bytes(answer)


class _Cache:
    """The most recently used answers, refusals too, within bounds of number and size."""

    def __init__(self) -> None:
        self._answers: OrderedDict[bytes, Compiled] = OrderedDict()
        self._num_characters = 0

    def get(self, key: bytes) -> Compiled | None:
        answer = self._answers.get(key)
        if answer is not None:
            self._answers.move_to_end(key)
        return answer

    def put(self, key: bytes, answer: Compiled) -> None:
        if key in self._answers:
            return
        self._answers[key] = answer
        self._num_characters += _size(answer)
        while len(self._answers) > _MAX_CACHED or self._num_characters > _MAX_CACHED_CHARACTERS:
            _, oldest = self._answers.popitem(last=False)
            self._num_characters -= _size(oldest)


def _size(answer: Compiled) -> int:
    return len(answer.grammar or answer.error or "")


def _message(constraint: Constraint) -> bytes:
    try:
        message = msgspec.json.encode(constraint) + b"\n"
    except UnicodeEncodeError:
        raise RequestError(
            f"{constraint.param} has a lone surrogate; send valid Unicode", param=constraint.param
        ) from None
    if len(message) > (16 * _MAX_MESSAGE_BYTES if constraint.kind == "compiled" else _MAX_MESSAGE_BYTES):
        raise RequestError(f"{constraint.param} is larger than {MAX_SCHEMA_BYTES} bytes", param=constraint.param)
    return message


def _vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    special_ids = tokenizer.special_ids.union(tokenizer.eos_token_ids)
    special = {token_id: tokenizer.token_bytes(token_id).decode("utf-8", "replace") for token_id in special_ids}
    return Vocabulary(tokenizer.vocab_size, tokenizer.eos_token_ids, special)
