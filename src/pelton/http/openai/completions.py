"""POST /v1/completions."""

import dataclasses
from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from pelton.http.body import read_json
from pelton.http.connection import while_connected
from pelton.http.openai.answers import Answer, collect
from pelton.http.openai.bad_words import with_bad_words
from pelton.http.openai.constraints import constrained
from pelton.http.openai.generation import Generation, generation, refuse_when_full
from pelton.http.openai.logprobs import TextPosition
from pelton.http.openai.models import check_model
from pelton.http.openai.parameters import completion_params
from pelton.http.openai.prompt_logprobs import by_token_id, echoed_logprobs, joined, off_loop_if_long
from pelton.http.openai.prompts import Prompt, completion_prompts
from pelton.http.openai.requests import CompletionBody
from pelton.http.openai.responses import Completion, CompletionChoice, CompletionLogprobs, Usage
from pelton.http.openai.run import Choice
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
    params = completion_params(body, vocab_size=tokenizer.vocab_size, defaults=service.engine.info.sampling_defaults)
    params = await with_bad_words(params, body.bad_words, tokenizer)
    refuse_when_full(service)
    params = await constrained(service, body, params)
    prompts = await completion_prompts(service, body)
    job = generation(service, request, body, prompts=prompts, params=params, prefix="cmpl-")
    job = dataclasses.replace(job, echo=bool(body.echo))
    if body.stream:
        return event_stream(service, job, _Chunks(service, job))
    content = await while_connected(request.receive, _whole(service, job))
    return Response(content, media_type="application/json")


async def _whole(service: Service, job: Generation) -> bytes:
    answers, usage = await collect(service, job)

    def encoded() -> bytes:
        choices = [_whole_choice(service, job, answer) for answer in answers]
        return _encode(Completion(id=job.id, created=job.created, model=job.model, choices=choices, usage=usage))

    return await off_loop_if_long(job.prompts, job.params, encoded)


def _whole_choice(service: Service, job: Generation, answer: Answer) -> CompletionChoice:
    choice = answer.choice
    echoed = _echoed_text(service, job, choice.prompt)
    count = job.prompt_logprobs
    return CompletionChoice(
        index=choice.index,
        text=echoed + answer.text,
        logprobs=_logprobs(service, job, choice, answer.positions, echoed),
        finish_reason=choice.finish_reason,
        stop_reason=choice.stop_reason,
        token_ids=answer.token_ids if job.return_token_ids else UNSET,
        prompt_token_ids=_prompt_token_ids(job, choice),
        prompt_logprobs=UNSET if count is None else by_token_id(job.names, choice.prompt_logprobs, count),
    )


def _logprobs(
    service: Service,
    job: Generation,
    choice: Choice,
    positions: Sequence[TextPosition],
    echoed: str,
    *,
    with_prompt: bool = True,
) -> CompletionLogprobs | None:
    """Of the output, and where the prompt is echoed of the prompt too."""
    count = job.params.logprobs
    if count is None:
        return None
    shape = job.names.completion(positions, len(echoed))
    if not job.echo or not with_prompt:
        return shape
    tokenizer, token_ids = service.engine.tokenizer, choice.prompt.token_ids
    return joined(echoed_logprobs(tokenizer, job.names, token_ids, echoed, choice.prompt_logprobs, count), shape)


class _Chunks:
    """Chunks of a streamed completion; see ChunkFormat."""

    def __init__(self, service: Service, job: Generation) -> None:
        self._service = service
        self._job = job
        self._echoed: dict[int, str] = {}  # by index of the choice

    def chunks(
        self, choice: Choice, delta: Delta, positions: Sequence[TextPosition], usage: Usage | None
    ) -> list[msgspec.Struct]:
        job = self._job
        is_first = not choice.has_begun
        if is_first:
            self._echoed[choice.index] = _echoed_text(self._service, job, choice.prompt)
        echoed = self._echoed[choice.index]
        text = echoed + delta.text if is_first else delta.text
        if not (text or positions or delta.finish_reason or job.return_token_ids):
            return []
        shown = CompletionChoice(
            index=choice.index,
            text=text,
            logprobs=_logprobs(self._service, job, choice, positions, echoed, with_prompt=is_first),
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
