"""POST /v1/completions."""

import dataclasses
from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from pelton.http.body import read_json
from pelton.http.connection import while_connected
from pelton.http.openai.generation import Answer, Choice, Generation, collect, generation, refuse_when_full
from pelton.http.openai.logprobs import TextPosition
from pelton.http.openai.models import check_model
from pelton.http.openai.parameters import completion_params
from pelton.http.openai.prompts import Prompt, completion_prompts
from pelton.http.openai.requests import CompletionBody
from pelton.http.openai.responses import Completion, CompletionChoice, Usage
from pelton.http.openai.stream import event_stream
from pelton.http.service import Service
from pelton.types import Delta

_decoder = msgspec.json.Decoder(CompletionBody)
_encode = msgspec.json.Encoder().encode


async def create_completion(service: Service, request: Request) -> Response:
    """Continue one prompt or several; streamed or whole."""
    body = await read_json(request, _decoder)
    check_model(service, body.model)
    tokenizer = service.engine.tokenizer
    params = completion_params(body, vocab_size=tokenizer.vocab_size)
    refuse_when_full(service)
    prompts = await completion_prompts(tokenizer, body, service.max_model_len)
    job = generation(service, request, body, prompts=prompts, params=params, prefix="cmpl-")
    job = dataclasses.replace(job, echo=bool(body.echo))
    if body.stream:
        return event_stream(service, job, _Chunks(service, job))
    completion = await while_connected(request.receive, _whole(service, job))
    return Response(_encode(completion), media_type="application/json")


async def _whole(service: Service, job: Generation) -> Completion:
    answers, usage = await collect(service, job)
    return Completion(
        id=job.id,
        created=job.created,
        model=job.model,
        choices=[_whole_choice(service, job, answer) for answer in answers],
        usage=usage,
    )


def _whole_choice(service: Service, job: Generation, answer: Answer) -> CompletionChoice:
    choice = answer.choice
    echoed = _echoed_text(service, job, choice.prompt)
    return CompletionChoice(
        index=choice.index,
        text=echoed + answer.text,
        logprobs=None if choice.logprobs is None else job.names.completion(answer.positions, len(echoed)),
        finish_reason=choice.finish_reason,
        stop_reason=choice.stop_reason,
        token_ids=answer.token_ids if job.return_token_ids else UNSET,
        prompt_token_ids=_prompt_token_ids(job, choice),
    )


class _Chunks:
    """Chunks of a streamed completion; see ChunkFormat."""

    def __init__(self, service: Service, job: Generation) -> None:
        self._service = service
        self._job = job

    def chunks(
        self, choice: Choice, delta: Delta, positions: Sequence[TextPosition], usage: Usage | None
    ) -> list[msgspec.Struct]:
        job = self._job
        is_first = not choice.has_begun
        text = (_echoed_text(self._service, job, choice.prompt) if is_first else "") + delta.text
        if not (text or positions or delta.finish_reason or job.return_token_ids):
            return []
        shown = CompletionChoice(
            index=choice.index,
            text=text,
            logprobs=None if choice.logprobs is None else job.names.completion(positions, 0),
            finish_reason=delta.finish_reason,
            stop_reason=delta.stop_reason,
            token_ids=list(delta.token_ids) if job.return_token_ids else UNSET,
            prompt_token_ids=_prompt_token_ids(job, choice) if is_first else UNSET,
        )
        return [self._chunk([shown], usage)]

    def text_chunk(self, index: int, text: str) -> Completion:
        return self._chunk([CompletionChoice(index=index, text=text)])

    def usage_chunk(self, usage: Usage) -> Completion:
        return self._chunk([], usage)

    def _chunk(self, choices: list[CompletionChoice], usage: Usage | None = None) -> Completion:
        job = self._job
        return Completion(id=job.id, created=job.created, model=job.model, choices=choices, usage=usage)


def _echoed_text(service: Service, job: Generation, prompt: Prompt) -> str:
    if not job.echo:
        return ""
    if prompt.text is not None:
        return prompt.text
    return service.engine.tokenizer.decode(prompt.token_ids, skip_special_tokens=job.params.skip_special_tokens)


def _prompt_token_ids(job: Generation, choice: Choice) -> list[int] | UnsetType:
    return list(choice.prompt.token_ids) if job.return_token_ids else UNSET
