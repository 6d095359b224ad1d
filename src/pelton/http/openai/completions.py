"""POST /v1/completions."""

import dataclasses
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from msgspec import UNSET, UnsetType
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
from pelton.http.openai.parameters import completion_params
from pelton.http.openai.prompts import Prompt, completion_prompts
from pelton.http.openai.requests import CompletionBody
from pelton.http.openai.responses import Completion, CompletionChoice
from pelton.http.service import Service
from pelton.http.sse import EventStream, event

_decoder = msgspec.json.Decoder(CompletionBody)
_encode = msgspec.json.Encoder().encode


async def create_completion(service: Service, request: Request) -> Response:
    """Continue one prompt or several; streamed or whole."""
    body = await read_json(request, _decoder)
    check_model(service, body.model)
    tokenizer = service.engine.tokenizer
    params = completion_params(body, max_model_len=service.max_model_len, vocab_size=tokenizer.vocab_size)
    refuse_when_full(service)
    prompts = await completion_prompts(tokenizer, body, service.max_model_len)
    job = generation(service, request, body, prompts=prompts, params=params, prefix="cmpl-")
    job = dataclasses.replace(job, echo=bool(body.echo))
    if body.stream:
        return EventStream(_events(service, job))
    completion = await while_connected(request.receive, _whole(service, job))
    return Response(_encode(completion), media_type="application/json")


async def _whole(service: Service, job: Generation) -> Completion:
    choices, usage = await collect(service, job)
    return Completion(
        id=job.id,
        created=job.created,
        model=job.model,
        choices=[_whole_choice(service, job, choice) for choice in choices],
        usage=usage,
    )


def _whole_choice(service: Service, job: Generation, choice: Choice) -> CompletionChoice:
    echoed = _echoed_text(service, job, choice.prompt)
    return CompletionChoice(
        index=choice.index,
        text=echoed + choice.text,
        logprobs=None if choice.logprobs is None else job.names.completion(choice.positions, len(echoed)),
        finish_reason=choice.finish_reason,
        stop_reason=choice.stop_reason,
        token_ids=choice.token_ids if job.return_token_ids else UNSET,
        prompt_token_ids=_prompt_token_ids(job, choice),
    )


async def _events(service: Service, job: Generation) -> AsyncGenerator[bytes, None]:
    usage = UsageCounter(job)
    async with aclosing(run(service, job)) as progresses:
        async for progress in progresses:
            usage.add(progress)
            choice = _chunk_choice(service, job, progress)
            if choice is not None:
                chunk = _chunk(job, [choice])
                if job.continuous_usage:
                    chunk.usage = usage.usage()
                yield event(chunk)
    if job.include_usage:
        chunk = _chunk(job, [])
        chunk.usage = usage.usage()
        yield event(chunk)


def _chunk_choice(service: Service, job: Generation, progress: Progress) -> CompletionChoice | None:
    """What of a delta is to be sent; None while its text is held back."""
    choice, delta = progress.choice, progress.delta
    echoed = _echoed_text(service, job, choice.prompt) if job.echo and progress.is_first else ""
    text = echoed + delta.text
    if not (text or progress.positions or delta.finish_reason or job.return_token_ids):
        return None
    return CompletionChoice(
        index=choice.index,
        text=text,
        logprobs=None if choice.logprobs is None else job.names.completion(progress.positions, 0),
        finish_reason=delta.finish_reason,
        stop_reason=delta.stop_reason,
        token_ids=list(delta.token_ids) if job.return_token_ids else UNSET,
        prompt_token_ids=_prompt_token_ids(job, choice) if progress.is_first else UNSET,
    )


def _chunk(job: Generation, choices: list[CompletionChoice]) -> Completion:
    return Completion(id=job.id, created=job.created, model=job.model, choices=choices, usage=None)


def _echoed_text(service: Service, job: Generation, prompt: Prompt) -> str:
    if not job.echo:
        return ""
    if prompt.text is not None:
        return prompt.text
    return service.engine.tokenizer.decode(prompt.token_ids, skip_special_tokens=job.params.skip_special_tokens)


def _prompt_token_ids(job: Generation, choice: Choice) -> list[int] | UnsetType:
    return list(choice.prompt.token_ids) if job.return_token_ids else UNSET
