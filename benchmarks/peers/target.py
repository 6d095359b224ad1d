"""One way to send prompts to an engine, whether it speaks HTTP or is a loop behind a pipe."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from peers.catalog import MODEL_NAME
from peers.server import Server
from pelton.bench.client import Outcome, send_request
from pelton.bench.connection import Address, HttpClient
from pelton.bench.serve import run_closed_loop
from pelton.bench.workload import Prompt

RETRY_SECONDS = 0.02
REQUEST_SECONDS = 900.0


class Target(Protocol):
    """An engine that answers prompts."""

    async def wait_until_ready(self, prompt: Prompt, seconds: float) -> Outcome:
        """The first answer to `prompt`.

        Raises:
            RuntimeError: the process ended, or there is none after `seconds`.
        """
        ...

    async def load(self, prompts: Sequence[Prompt], clients: int) -> list[Outcome]:
        """Answer all prompts with `clients` of them in flight."""
        ...

    def close(self) -> None: ...


class HttpTarget:
    """A server with the OpenAI API, under Pelton's own load generator."""

    def __init__(self, server: Server, settings: Mapping[str, object]) -> None:
        self._server = server
        self._client = HttpClient(Address.parse(f"http://127.0.0.1:{server.port}"))
        self._settings: dict[str, object] = {"model": MODEL_NAME, "temperature": 0.0, "ignore_eos": True, **settings}

    async def wait_until_ready(self, prompt: Prompt, seconds: float) -> Outcome:
        outcome = await self._send(prompt, None)
        while outcome.error is not None:
            self._server.check()
            refused = outcome.error.startswith("HTTP") and not outcome.error.startswith("HTTP 503")
            if refused or time.perf_counter() - self._server.started > seconds:
                raise RuntimeError(f"no answer within {seconds:g} s ({outcome.error}):\n{self._server.log_tail()}")
            await asyncio.sleep(RETRY_SECONDS)
            outcome = await self._send(prompt, None)
        return outcome

    async def load(self, prompts: Sequence[Prompt], clients: int) -> list[Outcome]:
        return await run_closed_loop(self._send, prompts, clients, lambda _: None)

    def close(self) -> None:
        self._client.close()

    async def _send(self, prompt: Prompt, started: float | None) -> Outcome:
        begun = time.perf_counter() if started is None else started
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                return await send_request(self._client, "completions", self._settings, prompt, begun)
        except TimeoutError:
            return Outcome(begun, time.perf_counter(), error=f"no end within {REQUEST_SECONDS:g} s")


class LoopTarget:
    """A script that reads batches of prompts as lines of JSON and answers each with a line of outcomes."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def wait_until_ready(self, prompt: Prompt, seconds: float) -> Outcome:
        return (await self._answer([prompt], 1, seconds))[0]

    async def load(self, prompts: Sequence[Prompt], clients: int) -> list[Outcome]:
        return await self._answer(prompts, clients, REQUEST_SECONDS)

    def close(self) -> None:
        """End the process: a thread that still waits for its answer reads the end of the stream."""
        self._server.process.terminate()

    async def _answer(self, prompts: Sequence[Prompt], clients: int, seconds: float) -> list[Outcome]:
        try:
            async with asyncio.timeout(seconds):
                line = await asyncio.to_thread(self._exchange, prompts, clients)
        except (TimeoutError, OSError) as error:
            self.close()
            raise RuntimeError(f"no answer ({error!r}, {seconds:g} s):\n{self._server.log_tail()}") from None
        if not line:
            self._server.process.wait()
            self._server.check()
        return msgspec.json.decode(line, type=list[Outcome])

    def _exchange(self, prompts: Sequence[Prompt], clients: int) -> str:
        stdin, stdout = self._server.process.stdin, self._server.process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(msgspec.json.encode({"prompts": prompts, "clients": clients}).decode() + "\n")
        stdin.flush()
        return stdout.readline()
