"""A fake engine that emits given token ids through the real detokenizer, and clients that talk to an app over it."""

import asyncio
import json
import os
import random
import signal
import socket
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import msgspec
import pytest
import tokenizers
from starlette.applications import Starlette
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from pelton.config import EngineConfig
from pelton.engine.delta import to_delta
from pelton.engine.protocol import DeltaSink, Health
from pelton.engine.text import TextStream
from pelton.http.app import create_app
from pelton.http.listener import bind
from pelton.http.protocol import GuardedProtocol
from pelton.http.server import run_server
from pelton.model_config import ModelInfo
from pelton.tokenizer import Tokenizer
from pelton.tokenizer.tokenizer import SpecialTokens
from pelton.types import EngineStats, FinishReason, Output, SamplingParams, TokenLogprobs

BOS, EOS = "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

URL = "/v1/completions"

Script = Sequence[int] | Callable[[Sequence[int], SamplingParams], Sequence[int]]


def tiny_tokenizer() -> Tokenizer:
    """256 byte tokens, a few merges and two special tokens: characters outside ASCII take several tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: index for index, character in enumerate(alphabet)}
    merges = [("D", "E"), ("DE", "F"), ("H", "I"), ("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w")]
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in (BOS, EOS)])
    return Tokenizer(
        backend,
        SpecialTokens(
            bos_token=BOS,
            eos_token=EOS,
            eos_token_ids=(backend.token_to_id(EOS),),
            chat_templates={"default": CHAT_TEMPLATE},
        ),
    )


def fake_vector(token_ids: Sequence[int]) -> "array[float]":
    """The vector of length 1 that FakeEngine gives for a prompt: how often it has ids of each remainder by 8."""
    counts = [sum(token_id % 8 == remainder for token_id in token_ids) for remainder in range(8)]
    length = sum(count * count for count in counts) ** 0.5
    return array("f", [count / length for count in counts])


@dataclass
class Call:
    """One call of FakeEngine.submit."""

    prompt_ids: tuple[int, ...]
    params: SamplingParams
    priority: int
    salt: str
    ended: FinishReason | None = None


@dataclass
class FakeEngine:
    """Implements EngineClient.

    Args:
        script: the ids to emit, or a function of (prompt ids, params) that gives them; a script that runs out ends with
            EOS. By default ids drawn from (prompt, seed).
        num_tokens_per_delta: how many ids one delta carries.
        delay: seconds between deltas.
        fail_after: raise `error` before this delta (0: before the first).
    """

    script: Script | None = None
    config: EngineConfig = field(default_factory=lambda: EngineConfig(max_model_len=2048, served_model_name="tiny"))
    tokenizer: Tokenizer = field(default_factory=tiny_tokenizer)
    num_tokens_per_delta: int = 1
    delay: float = 0.0
    fail_after: int | None = None
    error: Exception = field(default_factory=lambda: RuntimeError("planted at /secret/path"))
    health: Health = "ok"
    num_cached_tokens: int = 0
    stats: EngineStats = field(default_factory=EngineStats)
    calls: list[Call] = field(default_factory=list)
    num_live: int = 0
    aborting: bool = False
    sampling_defaults: Mapping[str, int | float] = field(default_factory=dict)

    @property
    def info(self) -> ModelInfo:
        return ModelInfo(
            architecture="LlamaForCausalLM",
            vocab_size=self.tokenizer.vocab_size,
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            num_key_value_heads=1,
            head_dim=8,
            max_position_embeddings=2048,
            eos_token_ids=self.tokenizer.eos_token_ids,
            sampling_defaults=self.sampling_defaults,
        )

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def submit(
        self, prompt_ids: Sequence[int], params: SamplingParams, sink: DeltaSink, *, priority: int = 0, salt: str = ""
    ) -> Callable[[], None]:
        assert params.n == 1
        assert params.max_tokens is not None
        assert 0 < len(prompt_ids) < (self.config.max_model_len or 0) + (params.max_tokens == 0)
        call = Call(tuple(prompt_ids), params, priority, salt)
        self.calls.append(call)
        self.num_live += 1
        task = asyncio.create_task(self._emit(call, sink))

        def abort() -> None:
            if call.ended is None:
                task.cancel()
                self._end(call, "abort")

        return abort

    async def _emit(self, call: Call, sink: DeltaSink) -> None:
        text = TextStream(self.tokenizer, call.params)
        for position, output in enumerate(self._outputs(call.prompt_ids, call.params)):
            await asyncio.sleep(self.delay)
            if self.fail_after is not None and position >= self.fail_after:
                self._end(call, "error")
                sink(self.error)
                return
            delta = to_delta(text, Output(0, finish_reason="abort") if self.aborting else output)
            if delta.finish_reason is not None:
                self._end(call, delta.finish_reason)
            sink(delta)
            if delta.finish_reason is not None:
                return

    def _end(self, call: Call, reason: FinishReason) -> None:
        call.ended = reason
        self.num_live -= 1

    async def abort_all(self) -> None:
        self.aborting = True

    def _outputs(self, prompt_ids: Sequence[int], params: SamplingParams) -> list[Output]:
        scores = self._prompt_logprobs(prompt_ids, params)
        if params.pooling is not None:
            vector = fake_vector(prompt_ids).tobytes()
            return [Output(0, finish_reason="stop", num_cached_tokens=self.num_cached_tokens, vector=vector)]
        if params.max_tokens == 0:
            return [*scores, Output(0, finish_reason="length")]
        ids, finish_reason, stop_reason = self._sequence(prompt_ids, params)
        size = self.num_tokens_per_delta
        outputs = [
            Output(
                0,
                token_ids=tuple(ids[start : start + size]),
                logprobs=self._logprobs(ids[start : start + size], params),
                num_cached_tokens=self.num_cached_tokens,
            )
            for start in range(0, len(ids), size)
        ]
        last = outputs[-1]
        outputs[-1] = Output(0, last.token_ids, last.logprobs, finish_reason, stop_reason, self.num_cached_tokens)
        return [*scores, *outputs]

    def _prompt_logprobs(self, prompt_ids: Sequence[int], params: SamplingParams) -> list[Output]:
        """Of three tokens at a time, as a prompt is computed in chunks."""
        if params.prompt_logprobs is None:
            return []
        entries = self._logprobs(prompt_ids[1:], msgspec.structs.replace(params, logprobs=params.prompt_logprobs)) or ()
        starts = range(0, len(entries), 3)
        return [Output(0, prompt_logprobs=entries[start : start + 3]) for start in starts]

    def _sequence(
        self, prompt_ids: Sequence[int], params: SamplingParams
    ) -> tuple[list[int], FinishReason, int | None]:
        emitted: list[int] = []
        eos = self.tokenizer.eos_token_ids[0]
        scripted = self._script(prompt_ids, params)
        while True:
            token = scripted[len(emitted)] if len(emitted) < len(scripted) else eos
            emitted.append(token)
            if len(emitted) > params.min_tokens:
                if token == eos and not params.ignore_eos:
                    return emitted, "stop", None
                if token in params.stop_token_ids:
                    return emitted, "stop", token
            if len(emitted) == params.max_tokens:
                return emitted, "length", None

    def _script(self, prompt_ids: Sequence[int], params: SamplingParams) -> Sequence[int]:
        if callable(self.script):
            return self.script(prompt_ids, params)
        if self.script is not None:
            return self.script
        seed = None if params.seed is None else f"{params.seed} {list(prompt_ids)}"
        generator = random.Random(seed)
        return [generator.randrange(32, 127) for _ in range(params.max_tokens or 0)]

    def _logprobs(self, ids: Sequence[int], params: SamplingParams) -> tuple[TokenLogprobs, ...] | None:
        """The sampled token has logprob -0.5 and rank 2, the alternatives -0.25, -1, -1.5 ..."""
        if params.logprobs is None:
            return None
        entries: list[TokenLogprobs] = []
        for token in ids:
            others = [(token + step) % 256 for step in range(1, params.logprobs + 1)]
            ranked = [others[0], token, *others[1:]][: params.logprobs] if params.logprobs else []
            values = (-0.25, -0.5, *(-float(rank) for rank in range(1, 30)))
            entries.append(TokenLogprobs(token, -0.5, 2, tuple(zip(ranked, values, strict=False))))
        return tuple(entries)


@dataclass
class Client:
    """A blocking client of an app, without a network: one event loop per request."""

    app: Starlette

    @classmethod
    def of(cls, engine: FakeEngine) -> "Client":
        return cls(create_app(engine))

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        return asyncio.run(self._request(method, path, options))

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, body: object, **options: Any) -> httpx.Response:
        return self.request("POST", path, json=body, **options)

    def events(self, path: str, body: Mapping[str, object]) -> list[dict[str, Any]]:
        """The JSON of every event of a stream, which must end with [DONE]."""
        return parse_events(self.post(path, {**body, "stream": True}))

    async def _request(self, method: str, path: str, options: dict[str, Any]) -> httpx.Response:
        transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, **options)


def parse_events(response: httpx.Response) -> list[dict[str, Any]]:
    """Split a stream's bytes strictly: data lines and blank lines in turn, [DONE] last and once."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = response.content.decode().split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    assert blocks.pop() == "data: [DONE]"
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


@dataclass
class Running:
    """A server in this event loop, and a client of it."""

    engine: FakeEngine
    client: httpx.AsyncClient
    server: asyncio.Task[int]
    was_signalled: bool = False

    def terminate(self) -> None:
        self.was_signalled = True
        os.kill(os.getpid(), signal.SIGTERM)


Scenario = Callable[[Running], Awaitable[None]]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def serving(engine: FakeEngine, scenario: Scenario) -> int:
    """Run a server, the scenario against it, then SIGTERM unless the scenario sent one; the exit code."""
    engine.config = replace(engine.config, port=free_port())

    async def main() -> int:
        sock = bind(engine.config)
        task = asyncio.create_task(run_server(engine, engine.config, sock))
        base_url = f"http://127.0.0.1:{engine.config.port}"
        async with httpx.AsyncClient(base_url=base_url, timeout=20) as client:
            running = Running(engine, client, task)
            await client.get("/version")
            await scenario(running)
            if not running.was_signalled:
                running.terminate()
            return await asyncio.wait_for(task, 10)

    return asyncio.run(main())


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        await asyncio.sleep(0.01)


@asynccontextmanager
async def raw_connection(engine: FakeEngine) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", engine.config.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def raw_post(body: dict[str, object]) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {URL} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


def use_small_send_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernel keep little for a client that does not read."""
    connection_made = GuardedProtocol.connection_made

    def with_small_buffer(self: GuardedProtocol, transport: asyncio.Transport) -> None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        connection_made(self, transport)

    monkeypatch.setattr(GuardedProtocol, "connection_made", with_small_buffer)
