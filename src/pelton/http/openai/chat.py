"""POST /v1/chat/completions."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from pelton.http.body import read_json
from pelton.http.connection import while_connected
from pelton.http.openai.generation import (
    Choice,
    Generation,
    Progress,
    UsageCounter,
    collect,
    generation,
    refuse_when_full,
    run,
)
from pelton.http.openai.models import check_model
from pelton.http.openai.parameters import chat_params
from pelton.http.openai.prompts import chat_completion_prompt
from pelton.http.openai.requests import ChatBody
from pelton.http.openai.responses import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatMessage,
    Usage,
)
from pelton.http.service import Service
from pelton.http.sse import EventStream, event

_decoder = msgspec.json.Decoder(ChatBody)
_encode = msgspec.json.Encoder().encode


async def create_chat_completion(service: Service, request: Request) -> Response:
    """Answer a chat; streamed or whole."""
    body = await read_json(request, _decoder)
    check_model(service, body.model)
    tokenizer = service.engine.tokenizer
    params = chat_params(body, max_model_len=service.max_model_len, vocab_size=tokenizer.vocab_size)
    refuse_when_full(service)
    prompt = await chat_completion_prompt(tokenizer, body, service.max_model_len)
    job = generation(service, request, body, prompts=[prompt], params=params, prefix="chatcmpl-")
    if body.stream:
        return EventStream(_events(service, job))
    completion = await while_connected(request.receive, _whole(service, job))
    return Response(_encode(completion), media_type="application/json")


async def _whole(service: Service, job: Generation) -> ChatCompletion:
    choices, usage = await collect(service, job)
    return ChatCompletion(
        id=job.id,
        created=job.created,
        model=job.model,
        choices=[_whole_choice(job, choice) for choice in choices],
        usage=usage,
        prompt_token_ids=list(job.prompts[0].token_ids) if job.return_token_ids else UNSET,
    )


def _whole_choice(job: Generation, choice: Choice) -> ChatChoice:
    return ChatChoice(
        index=choice.index,
        message=ChatMessage(content=choice.text),
        logprobs=None if choice.logprobs is None else job.names.chat(choice.positions),
        finish_reason=choice.finish_reason,
        stop_reason=choice.stop_reason,
        token_ids=choice.token_ids if job.return_token_ids else UNSET,
    )


async def _events(service: Service, job: Generation) -> AsyncGenerator[bytes, None]:
    usage = UsageCounter(job)
    async with aclosing(run(service, job)) as progresses:
        async for progress in progresses:
            usage.add(progress)
            current = usage.usage() if job.continuous_usage else None
            chunks = [_chunk(job, [choice], current) for choice in _chunk_choices(job, progress)]
            if chunks:
                if progress.is_first and progress.choice.index == 0 and job.return_token_ids:
                    chunks[0].prompt_token_ids = list(job.prompts[0].token_ids)
                yield b"".join(map(event, chunks))
    if job.include_usage:
        yield event(_chunk(job, [], usage.usage()))


def _chunk_choices(job: Generation, progress: Progress) -> list[ChatChunkChoice]:
    """One delta as chunks: the role before anything else, then text, and a finish chunk with an empty delta."""
    choice, delta = progress.choice, progress.delta
    chunks: list[ChatChunkChoice] = []
    if progress.is_first:
        chunks.append(ChatChunkChoice(index=choice.index, delta=ChatDelta(role="assistant", content="")))
    if delta.text or progress.positions or (job.return_token_ids and delta.token_ids):
        chunks.append(
            ChatChunkChoice(
                index=choice.index,
                delta=ChatDelta(content=delta.text),
                logprobs=None if choice.logprobs is None else job.names.chat(progress.positions),
                token_ids=list(delta.token_ids) if job.return_token_ids else UNSET,
            )
        )
    if delta.finish_reason is not None:
        chunks.append(
            ChatChunkChoice(
                index=choice.index,
                delta=ChatDelta(),
                finish_reason=delta.finish_reason,
                stop_reason=delta.stop_reason,
            )
        )
    return chunks


def _chunk(job: Generation, choices: list[ChatChunkChoice], usage: Usage | None) -> ChatChunk:
    return ChatChunk(id=job.id, created=job.created, model=job.model, choices=choices, usage=usage)
