"""One streaming request to an OpenAI-compatible server, and when each of its chunks arrived."""

import itertools
import time
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from pelton.bench.connection import HttpClient, Reply
from pelton.bench.workload import Prompt

Endpoint = Literal["completions", "chat"]
PATHS: dict[Endpoint, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one request. Times are seconds of `time.perf_counter`, differences of it where not said otherwise.

    `gaps` are the times between successive chunks with text. `error` is the reason of a failure; then only `started`
    and `ended` mean something.
    """

    started: float  # clock
    ended: float  # clock, last chunk of the choice
    ttft: float = 0.0
    gaps: tuple[float, ...] = ()
    prompt_tokens: int = 0
    output_tokens: int = 0
    num_chunks: int = 0
    error: str | None = None

    @property
    def latency(self) -> float:
        """Seconds from sending to the last token."""
        return self.ended - self.started

    @property
    def tpot(self) -> float | None:
        """Seconds per output token after the first; None for a single token."""
        return (self.latency - self.ttft) / (self.output_tokens - 1) if self.output_tokens > 1 else None


class Message(msgspec.Struct):
    """The text of a chat chunk; `role` marks the opening one, which carries no token."""

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None


class Choice(msgspec.Struct):
    text: str | None = None
    delta: Message | None = None
    finish_reason: str | None = None

    @property
    def content(self) -> str:
        """The text of the chunk, of either endpoint."""
        delta = self.delta or Message()
        return self.text or delta.content or delta.reasoning_content or ""

    @property
    def has_token(self) -> bool:
        """Whether the chunk stands for generated tokens. Their text may be empty (half a character)."""
        opens_chat = self.delta is not None and self.delta.role is not None
        return bool(self.content) or not (opens_chat or self.finish_reason is not None)


class PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: PromptDetails | None = None


class Chunk(msgspec.Struct):
    """One event of a stream, as far as timing needs it."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: object = None


_decoder = msgspec.json.Decoder(Chunk)


@dataclass(slots=True)
class StreamRecorder:
    """Takes the events of one stream and notes the time of each chunk."""

    token_times: list[float] = field(default_factory=list[float])
    last_time: float = 0.0
    usage: Usage | None = None
    finished: bool = False
    num_chunks: int = 0
    error: str | None = None

    def on_event(self, data: bytes) -> None:
        now = time.perf_counter()
        if data == b"[DONE]":
            return
        self.num_chunks += 1
        try:
            chunk = _decoder.decode(data)
        except msgspec.DecodeError as error:
            self.error = f"bad chunk: {error}"
            return
        if chunk.error is not None:
            self.error = error_message(chunk.error)
        if chunk.usage is not None:
            self.usage = chunk.usage
        for choice in chunk.choices:
            self.last_time = now
            self.finished = self.finished or choice.finish_reason is not None
            if choice.has_token:
                self.token_times.append(now)

    def outcome(self, reply: Reply, started: float) -> Outcome:
        """The timings, or why there are none."""
        error = self._failure(reply)
        if error is not None or self.usage is None:
            return Outcome(started, time.perf_counter(), error=error)
        # A request whose tokens all fall into the finishing chunk has its first token there.
        times = self.token_times or [self.last_time]
        return Outcome(
            started,
            self.last_time,
            ttft=times[0] - started,
            gaps=tuple(after - before for before, after in itertools.pairwise(times)),
            prompt_tokens=self.usage.prompt_tokens,
            output_tokens=self.usage.completion_tokens,
            num_chunks=self.num_chunks,
        )

    def _failure(self, reply: Reply) -> str | None:
        if reply.status != 200:
            return f"HTTP {reply.status}: {error_message(decode_json(reply.body))}"
        if self.error is not None:
            return self.error
        if not self.finished:
            return "the stream ended without a finish_reason"
        return None if self.usage is not None else "the server sent no usage, though stream_options asked for it"


async def send_request(
    client: HttpClient, endpoint: Endpoint, settings: dict[str, object], prompt: Prompt, started: float | None = None
) -> Outcome:
    """Send one prompt as a stream. Failures are outcomes, too: only cancellation leaves here.

    Args:
        settings: further members of the request body: model, temperature, ...
        started: clock time that latencies count from; now by default.
    """
    body = msgspec.json.encode(request_body(endpoint, settings, prompt))
    recorder = StreamRecorder()
    started = time.perf_counter() if started is None else started
    try:
        reply = await client.post(PATHS[endpoint], body, recorder.on_event)
    except OSError as error:
        return Outcome(started, time.perf_counter(), error=f"{type(error).__name__}: {error}")
    return recorder.outcome(reply, started)


class _Model(msgspec.Struct):
    id: str


class _ModelList(msgspec.Struct):
    data: list[_Model]


async def first_model(client: HttpClient) -> str:
    """The first name in /v1/models."""
    reply = await client.get("/v1/models")
    if reply.status != 200:
        raise ValueError(f"/v1/models says HTTP {reply.status}: {error_message(decode_json(reply.body))}")
    try:
        models = msgspec.json.decode(reply.body, type=_ModelList).data
    except msgspec.DecodeError:
        models = []
    if not models:
        raise ValueError("/v1/models lists no model; name one with --model")
    return models[0].id


def request_body(endpoint: Endpoint, settings: dict[str, object], prompt: Prompt) -> dict[str, object]:
    """The JSON of a streaming request that asks for its usage."""
    stream = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": prompt.max_tokens}
    return settings | prompt_member(endpoint, prompt.text) | stream


def prompt_member(endpoint: Endpoint, text: str) -> dict[str, object]:
    """`prompt` or `messages`, as /v1/... and /tokenize take it."""
    return {"prompt": text} if endpoint == "completions" else {"messages": [{"role": "user", "content": text}]}


def decode_json(body: bytes) -> object:
    """The parsed body, or its text when it is no JSON."""
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body.decode("utf-8", "replace")


def error_message(error: object) -> str:
    """The message within an OpenAI error object, at most 200 characters."""
    while isinstance(error, dict):
        members: dict[str, object] = error  # pyright: ignore[reportUnknownVariableType]
        inner = members.get("error", members.get("message", members.get("detail")))
        if inner is None:
            break
        error = inner
    return (error if isinstance(error, str) else msgspec.json.encode(error).decode()).strip()[:200]
