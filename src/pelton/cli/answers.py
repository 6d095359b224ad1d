"""Where answers come from: an engine of our own, or a server that speaks the OpenAI API."""

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import msgspec

from pelton.bench.client import Chunk, decode_json, error_message, first_model
from pelton.bench.connection import Address, HttpClient
from pelton.cli.sampling import DEFAULTS, SamplingSettings
from pelton.config import EngineConfig
from pelton.engine.client import AsyncEngine
from pelton.errors import RequestError
from pelton.types import SamplingParams

OnText = Callable[[str], None]
ChatMessage = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """What an answer took. Prompt tokens include the cached ones."""

    prompt: int
    cached: int
    output: int


class ChatModel(Protocol):
    """Answers a conversation piece by piece. Cancelling `answer` ends the generation."""

    @property
    def name(self) -> str: ...

    async def answer(self, messages: Sequence[ChatMessage], settings: SamplingSettings, on_text: OnText) -> TokenCounts:
        """Raises RequestError when the conversation cannot be answered."""
        ...

    async def close(self) -> None: ...


class LocalModel:
    """An engine in a process of its own."""

    def __init__(self, engine: AsyncEngine, stop: Callable[[], Awaitable[None]]) -> None:
        self._engine = engine
        self._stop = stop
        self.name = engine.config.served_model_name or engine.config.model or "the embedded model"

    @classmethod
    async def start(cls, config: EngineConfig) -> Self:
        engine = await AsyncEngine.start(config)
        return cls(engine, engine.stop)

    @property
    def has_chat_template(self) -> bool:
        return self._engine.tokenizer.chat_template is not None

    async def answer(self, messages: Sequence[ChatMessage], settings: SamplingSettings, on_text: OnText) -> TokenCounts:
        tokenizer = self._engine.tokenizer
        text = tokenizer.apply_chat_template([dict(message) for message in messages])
        return await self._generate(tokenizer.encode(text, add_special_tokens=False), settings, on_text)

    async def complete(self, prompt: str, settings: SamplingSettings, on_text: OnText) -> TokenCounts:
        """Continue a text as it is, without the chat template."""
        return await self._generate(self._engine.tokenizer.encode(prompt), settings, on_text)

    async def close(self) -> None:
        await self._stop()

    async def _generate(self, prompt_ids: Sequence[int], settings: SamplingSettings, on_text: OnText) -> TokenCounts:
        params = SamplingParams(**{**DEFAULTS, **self._engine.info.sampling_defaults, **settings})
        num_cached = num_output = 0
        async with contextlib.aclosing(self._engine.generate(prompt_ids, params)) as deltas:
            async for delta in deltas:
                num_cached = max(num_cached, delta.num_cached_tokens)
                num_output += len(delta.token_ids)
                if delta.text:
                    on_text(delta.text)
        return TokenCounts(len(prompt_ids), num_cached, num_output)


class RemoteModel:
    """A model behind /v1/chat/completions."""

    def __init__(self, client: HttpClient, name: str) -> None:
        self._client = client
        self.name = name

    @classmethod
    async def connect(cls, url: str, api_key: str | None, name: str | None) -> Self:
        """Raises OSError when nobody listens and ValueError when the server lists no model."""
        client = HttpClient(Address.parse(url), api_key)
        return cls(client, name or await first_model(client))

    async def answer(self, messages: Sequence[ChatMessage], settings: SamplingSettings, on_text: OnText) -> TokenCounts:
        stream = _AnswerStream(on_text)
        body = {"model": self.name, "messages": messages, "stream": True, "stream_options": {"include_usage": True}}
        given = {name: value for name, value in settings.items() if value is not None}  # the rest is the server's
        encoded = msgspec.json.encode({**body, **given})
        reply = await self._client.post("/v1/chat/completions", encoded, stream.on_event)
        if reply.status != 200:
            raise RequestError(error_message(decode_json(reply.body)), status=reply.status)
        if stream.error is not None:
            raise RequestError(stream.error)
        return stream.counts

    async def close(self) -> None:
        self._client.close()


class _AnswerStream:
    """Takes the events of one answer."""

    def __init__(self, on_text: OnText) -> None:
        self.counts = TokenCounts(0, 0, 0)
        self.error: str | None = None
        self._on_text = on_text
        self._decoder = msgspec.json.Decoder(Chunk)

    def on_event(self, data: bytes) -> None:
        if data == b"[DONE]":
            return
        chunk = self._decoder.decode(data)
        if chunk.error is not None:
            self.error = error_message(chunk.error)
        if chunk.usage is not None:
            details = chunk.usage.prompt_tokens_details
            cached = details.cached_tokens or 0 if details is not None else 0
            self.counts = TokenCounts(chunk.usage.prompt_tokens, cached, chunk.usage.completion_tokens)
        for choice in chunk.choices:
            if choice.content:
                self._on_text(choice.content)
