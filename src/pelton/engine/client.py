"""AsyncEngine: the asyncio client of an engine in another process. No torch here."""

import asyncio
import contextlib
import itertools
import logging
import random
import socket
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Self

import msgspec

from pelton.config import EngineConfig, chosen
from pelton.engine.checks import check_request
from pelton.engine.delta import to_delta
from pelton.engine.describe import describe
from pelton.engine.host import EngineHost, ProcessHost
from pelton.engine.protocol import Abort, Add, Failed, Framing, FromEngine, Health, Outputs, Ready, Start, frame
from pelton.engine.text import TextStream
from pelton.errors import EngineDeadError
from pelton.model_config import ModelInfo
from pelton.tokenizer import Tokenizer
from pelton.types import Delta, EngineStats, Output, SamplingParams

logger = logging.getLogger(__name__)

_READ_BYTES = 1 << 18
_RESTART_SECONDS = (0.0, 1.0, 5.0)  # waits before each attempt to start a dead engine again

OutputQueue = asyncio.Queue[Output | Exception]


class AsyncEngine:
    """Sends requests to the engine process, turns its tokens into text, and starts a new one if it dies.

    Use `await AsyncEngine.start(config)`, then `generate`, then `await engine.stop()`.
    """

    def __init__(
        self, config: EngineConfig, info: ModelInfo, tokenizer: Tokenizer, host: EngineHost, start: Start
    ) -> None:
        self.config = config
        self.info = info
        self.tokenizer = tokenizer
        self.stats = EngineStats()
        self.num_restarts = 0
        self._host = host
        self._start_message = start
        self._writer: asyncio.StreamWriter | None = None
        self._queues: dict[int, OutputQueue] = {}
        self._ids = itertools.count()
        self._seeds = random.Random(config.seed)
        self._health: Health = "starting"
        self._progress_at = time.monotonic()
        self._supervisor: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, config: EngineConfig) -> Self:
        """Start the engine process, and read the model's description while it imports what it needs.

        Raises:
            ValueError: the model or a setting cannot work; the message names it and the fix.
        """
        host = ProcessHost()
        connection = host.start()
        try:
            engine = await asyncio.to_thread(cls._describe, config, host)
            await engine.connect(connection)
        except BaseException:
            connection.close()
            host.stop(at_once=True)  # it may be importing torch, and has nothing to save
            raise
        return engine

    @classmethod
    def _describe(cls, config: EngineConfig, host: EngineHost) -> Self:
        model = describe(config)
        start = Start(model.config, model.info, str(model.path))
        return cls(model.config, model.info, model.tokenizer, host, start)

    async def connect(self, connection: socket.socket) -> None:
        """Send Start over a connection from the host, wait until the engine is ready, and watch it from then on."""
        reader = await self._handshake(connection)
        self._supervisor = asyncio.create_task(self._supervise(reader))

    async def stop(self) -> None:
        """End every request with an error and the engine process with them."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervisor
        self._disconnect("the engine was stopped")
        await asyncio.to_thread(self._host.stop)

    @property
    def health(self) -> Health:
        """Progress-based: an engine that has work and makes no step is "stuck"."""
        idle = not self._queues
        if self._health == "ok" and not idle and time.monotonic() - self._progress_at > self.config.stuck_after:
            return "stuck"
        return self._health

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, priority: int = 0, salt: str = ""
    ) -> AsyncGenerator[Delta, None]:
        """Run one choice; see EngineClient.generate."""
        assert params.n == 1, "generate runs one choice; expand n with params.for_choice"
        check_request(prompt_ids, params, self.info.vocab_size, chosen(self.config.max_model_len))
        if params.seed is None:
            params = msgspec.structs.replace(params, seed=self._seeds.getrandbits(63))
        request_id = next(self._ids)
        queue = self._open(Add(request_id, tuple(prompt_ids), params, priority, salt))
        text = TextStream(self.tokenizer, params)
        is_engine_done = False
        try:
            while True:
                output = await queue.get()
                if isinstance(output, Exception):
                    raise output
                is_engine_done = output.finish_reason is not None
                delta = to_delta(text, output)
                yield delta
                if delta.finish_reason is not None:
                    return
        finally:
            self._queues.pop(request_id, None)
            if not is_engine_done:
                self._send(Abort((request_id,)))

    async def abort_all(self) -> None:
        """End every request with finish_reason "abort"."""
        self._send(Abort(tuple(self._queues)))

    def _open(self, message: Add) -> OutputQueue:
        if self._writer is None:
            raise EngineDeadError("the engine is not running")
        if not self._queues:
            self._progress_at = time.monotonic()  # being idle is not being stuck
        queue: OutputQueue = asyncio.Queue()
        self._queues[message.request_id] = queue
        self._send(message)
        return queue

    def _send(self, message: Add | Abort) -> None:
        if self._writer is not None:
            self._writer.write(frame(message))

    async def _handshake(self, connection: socket.socket) -> asyncio.StreamReader:
        """Send Start and wait for Ready; until then no request is taken."""
        reader, writer = await asyncio.open_unix_connection(sock=connection)
        try:
            writer.write(frame(self._start_message))
            self.stats = await _read_ready(reader)
        except BaseException:
            writer.close()
            raise
        self._writer = writer
        self._health = "ok"
        return reader

    async def _supervise(self, reader: asyncio.StreamReader) -> None:
        """Read until the engine dies; then fail its requests, start a new one, and read on."""
        while True:
            await self._read(reader)
            self._disconnect("the engine process died")
            logger.error("the engine process died; starting a new one")
            restarted = await self._restart()
            if restarted is None:
                logger.critical("the engine process cannot be started again; the server stays up and answers 503")
                return
            reader = restarted

    async def _restart(self) -> asyncio.StreamReader | None:
        for seconds in _RESTART_SECONDS:
            await asyncio.sleep(seconds)
            await asyncio.to_thread(self._host.stop)
            try:
                reader = await self._handshake(self._host.start())
            except (ValueError, OSError) as error:
                logger.error("restart failed: %s", error)
                continue
            self.num_restarts += 1
            return reader
        return None

    async def _read(self, reader: asyncio.StreamReader) -> None:
        framing = Framing(FromEngine)
        with contextlib.suppress(ConnectionResetError):
            while data := await reader.read(_READ_BYTES):
                for message in framing.feed(data):
                    assert isinstance(message, Outputs), "only outputs follow the handshake"
                    self._take(message)

    def _take(self, message: Outputs) -> None:
        self._progress_at = time.monotonic()
        self.stats = message.stats
        for output in message.outputs:
            queue = self._queues.get(output.request_id)
            if queue is not None:  # else the client has gone and an abort is under way
                queue.put_nowait(output)

    def _disconnect(self, reason: str) -> None:
        self._health = "dead"
        self.stats = EngineStats()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        for queue in self._queues.values():
            queue.put_nowait(EngineDeadError(reason))
        self._queues.clear()


async def _read_ready(reader: asyncio.StreamReader) -> EngineStats:
    framing = Framing(FromEngine)
    while data := await reader.read(_READ_BYTES):
        for message in framing.feed(data):
            if isinstance(message, Failed):
                raise ValueError(message.message)
            assert isinstance(message, Ready), "the engine speaks before it is asked"
            return message.stats
    raise ValueError("the engine process ended while it was starting; its log says why")
