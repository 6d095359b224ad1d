"""AsyncEngine: the asyncio client of an engine in another process. No torch here."""

import asyncio
import contextlib
import functools
import itertools
import logging
import random
import socket
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Self

import msgspec

from pelton.config import EngineConfig, chosen
from pelton.engine.checks import check_request
from pelton.engine.delta import to_delta
from pelton.engine.describe import describe
from pelton.engine.host import EngineHost, ProcessHost
from pelton.engine.link import EngineLink
from pelton.engine.messages import Abort, Add, Failed, FromEngine, Outputs, Ready, Start
from pelton.engine.protocol import DeltaSink, Health
from pelton.engine.text import TextStream
from pelton.errors import EngineDeadError, RequestError
from pelton.model_config import ModelInfo
from pelton.tokenizer import Tokenizer
from pelton.types import Delta, EngineStats, Output, SamplingParams

logger = logging.getLogger(__name__)

_RESTART_SECONDS = (0.0, 1.0, 5.0)  # waits before each attempt to start a dead engine again
_ENDED = "the engine process ended while it was starting; its log says why"


@dataclass(slots=True, eq=False)
class _Stream:
    """A request under way."""

    text: TextStream
    sink: DeltaSink


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
        self._link: EngineLink | None = None
        self._ready: asyncio.Future[EngineStats | str] | None = None  # what Ready or Failed says, while one is awaited
        self._streams: dict[int, _Stream] = {}
        self._ids = itertools.count()
        self._seeds = random.Random(config.seed)
        self._health: Health = "starting"
        self._progress_at = time.monotonic()
        self._supervisor: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, config: EngineConfig, host: EngineHost | None = None) -> Self:
        """Start the engine process, and read the model's description while it imports what it needs.

        Args:
            host: where the engine runs; a new process by default.

        Raises:
            ValueError: the model or a setting cannot work; the message names it and the fix.
        """
        host = host or ProcessHost()
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
        link = await self._handshake(connection)
        self._supervisor = asyncio.create_task(self._supervise(link))

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
        idle = not self._streams
        if self._health == "ok" and not idle and time.monotonic() - self._progress_at > self.config.stuck_after:
            return "stuck"
        return self._health

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, priority: int = 0, salt: str = ""
    ) -> AsyncGenerator[Delta, None]:
        """Run one choice as `submit` does. Closing or cancelling the generator aborts the request.

        Raises:
            RequestError: the prompt is empty, too long or out of vocabulary, or the request failed.
            EngineDeadError: there is no engine process, or it died under the request.
        """
        deltas: asyncio.Queue[Delta | Exception] = asyncio.Queue()
        abort = self.submit(prompt_ids, params, deltas.put_nowait, priority=priority, salt=salt)
        try:
            while True:
                delta = await deltas.get()
                if isinstance(delta, Exception):
                    raise delta
                yield delta
                if delta.finish_reason is not None:
                    return
        finally:
            abort()

    def submit(
        self, prompt_ids: Sequence[int], params: SamplingParams, sink: DeltaSink, *, priority: int = 0, salt: str = ""
    ) -> Callable[[], None]:
        """Run one choice; see EngineClient.submit."""
        assert params.n == 1, "submit runs one choice; expand n with params.for_choice"
        check_request(prompt_ids, params, self.info.vocab_size, chosen(self.config.max_model_len))
        if self._link is None:
            raise EngineDeadError("the engine is not running")
        if params.seed is None:
            params = msgspec.structs.replace(params, seed=self._seeds.getrandbits(63))
        if not self._streams:
            self._progress_at = time.monotonic()  # being idle is not being stuck
        request_id = next(self._ids)
        self._streams[request_id] = _Stream(TextStream(self.tokenizer, params), sink)
        self._link.send(Add(request_id, tuple(prompt_ids), params, priority, salt))
        return functools.partial(self._abort, request_id)

    async def abort_all(self) -> None:
        """End every request with finish_reason "abort"."""
        if self._link is not None:
            self._link.send(Abort(tuple(self._streams)))

    def _abort(self, request_id: int) -> None:
        if self._streams.pop(request_id, None) is not None and self._link is not None:
            self._link.send(Abort((request_id,)))

    async def _handshake(self, connection: socket.socket) -> EngineLink:
        """Send Start and wait for Ready; until then no request is taken."""
        self._ready = asyncio.get_running_loop().create_future()
        link = await EngineLink.open(connection, self._on_message)
        try:
            link.send(self._start_message)
            await asyncio.wait((self._ready, link.closed), return_when=asyncio.FIRST_COMPLETED)
            answer = self._ready.result() if self._ready.done() else _ENDED
            if isinstance(answer, str):
                raise ValueError(answer)
        except BaseException:
            link.close()
            raise
        self.stats = answer
        self._link = link
        self._health = "ok"
        return link

    async def _supervise(self, link: EngineLink) -> None:
        """Wait until the engine dies; then fail its requests, start a new one, and wait again."""
        while True:
            await link.closed
            self._disconnect("the engine process died")
            logger.error("the engine process died; starting a new one")
            restarted = await self._restart()
            if restarted is None:
                logger.critical("the engine process cannot be started again; the server stays up and answers 503")
                return
            link = restarted

    async def _restart(self) -> EngineLink | None:
        for seconds in _RESTART_SECONDS:
            await asyncio.sleep(seconds)
            await asyncio.to_thread(self._host.stop)
            try:
                link = await self._handshake(self._host.start())
            except (ValueError, OSError) as error:
                logger.error("restart failed: %s", error)
                continue
            self.num_restarts += 1
            return link
        return None

    def _on_message(self, message: FromEngine) -> None:
        match message:
            case Outputs(outputs=outputs, stats=stats):
                self._progress_at = time.monotonic()
                self.stats = stats
                for output in outputs:
                    stream = self._streams.get(output.request_id)
                    if stream is not None:  # else the client has gone and an abort is under way
                        self._deliver(stream, output)
            case Ready(stats=answer) | Failed(message=answer):
                assert self._ready is not None, "the engine speaks before it is asked"
                if not self._ready.done():
                    self._ready.set_result(answer)

    def _deliver(self, stream: _Stream, output: Output) -> None:
        try:
            delta = to_delta(stream.text, output)
        except RequestError as error:
            del self._streams[output.request_id]
            stream.sink(error)
            return
        if output.finish_reason is not None:
            del self._streams[output.request_id]
        elif delta.finish_reason is not None:  # a stop string, of which the engine does not know
            self._abort(output.request_id)
        stream.sink(delta)

    def _disconnect(self, reason: str) -> None:
        self._health = "dead"
        self.stats = EngineStats()
        if self._link is not None:
            self._link.close()
            self._link = None
        streams = list(self._streams.values())
        self._streams.clear()
        for stream in streams:
            stream.sink(EngineDeadError(reason))
