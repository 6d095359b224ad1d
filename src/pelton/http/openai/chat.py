"""POST /v1/chat/completions."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from pelton.http.body import read_json
from pelton.http.connection import while_connected
from pelton.http.openai.generation import Choice, Generation, generation, refuse_when_full
from pelton.http.openai.logprobs import TextPosition
from pelton.http.openai.models import check_model
from pelton.http.openai.parameters import chat_params
from pelton.http.openai.parts import PlainText
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
from pelton.http.openai.stream import event_stream
from pelton.http.openai.turns import ChatJob, Turn, collect_turns
from pelton.http.service import Service
from pelton.types import Delta

_decoder = msgspec.json.Decoder(ChatBody)
_encode = msgspec.json.Encoder().encode


async def create_chat_completion(service: Service, request: Request) -> Response:
    """Answer a chat; streamed or whole."""
    body = await read_json(request, _decoder)
    job = await chat_job(service, request, body, prefix="chatcmpl-")
    if body.stream:
        return event_stream(service, job.generation, _Chunks(job.generation))
    completion = await while_connected(request.receive, _whole(service, job))
    return Response(_encode(completion), media_type="application/json")


async def chat_job(service: Service, request: Request, body: ChatBody, *, prefix: str) -> ChatJob:
    """Check and tokenize a chat, of this endpoint or of another one that was written as such. `prefix` starts the id.

    Raises:
        RequestError: names the field; or the queue is full.
    """
    check_model(service, body.model)
    tokenizer = service.engine.tokenizer
    params = chat_params(body, vocab_size=tokenizer.vocab_size)
    refuse_when_full(service)
    prompt = await chat_completion_prompt(tokenizer, body, service.max_model_len)
    job = generation(service, request, body, prompts=[prompt], params=params, prefix=prefix)
    return ChatJob(generation=job, new_parser=PlainText)


async def _whole(service: Service, chat: ChatJob) -> ChatCompletion:
    job = chat.generation
    turns, usage = await collect_turns(service, chat)
    return ChatCompletion(
        id=job.id,
        created=job.created,
        model=job.model,
        choices=[_whole_choice(job, turn) for turn in turns],
        usage=usage,
        prompt_token_ids=list(job.prompts[0].token_ids) if job.return_token_ids else UNSET,
    )


def _whole_choice(job: Generation, turn: Turn) -> ChatChoice:
    choice = turn.choice
    return ChatChoice(
        index=choice.index,
        message=ChatMessage(content=turn.text),
        logprobs=None if choice.logprobs is None else job.names.chat(turn.positions),
        finish_reason=turn.finish_reason,
        stop_reason=choice.stop_reason,
        token_ids=turn.token_ids if job.return_token_ids else UNSET,
    )


class _Chunks:
    """Chunks of a streamed chat completion; see ChunkFormat."""

    def __init__(self, job: Generation) -> None:
        self._job = job

    def chunks(
        self, choice: Choice, delta: Delta, positions: Sequence[TextPosition], usage: Usage | None
    ) -> list[msgspec.Struct]:
        """The role before anything else, then text, and a finish chunk with an empty delta."""
        job = self._job
        shown: list[ChatChunkChoice] = []
        if not choice.has_begun:
            shown.append(ChatChunkChoice(index=choice.index, delta=ChatDelta(role="assistant", content="")))
        if delta.text or positions or (job.return_token_ids and delta.token_ids):
            shown.append(
                ChatChunkChoice(
                    index=choice.index,
                    delta=ChatDelta(content=delta.text),
                    logprobs=None if choice.logprobs is None else job.names.chat(positions),
                    token_ids=list(delta.token_ids) if job.return_token_ids else UNSET,
                )
            )
        if delta.finish_reason is not None:
            shown.append(
                ChatChunkChoice(
                    index=choice.index,
                    delta=ChatDelta(),
                    finish_reason=delta.finish_reason,
                    stop_reason=delta.stop_reason,
                )
            )
        chunks = [self._chunk([part], usage) for part in shown]
        if chunks and not choice.has_begun and choice.index == 0 and job.return_token_ids:
            chunks[0].prompt_token_ids = list(job.prompts[0].token_ids)
        return list[msgspec.Struct](chunks)

    def text_chunk(self, index: int, text: str) -> ChatChunk:
        return self._chunk([ChatChunkChoice(index=index, delta=ChatDelta(content=text))])

    def usage_chunk(self, usage: Usage) -> ChatChunk:
        return self._chunk([], usage)

    def _chunk(self, choices: list[ChatChunkChoice], usage: Usage | None = None) -> ChatChunk:
        job = self._job
        return ChatChunk(id=job.id, created=job.created, model=job.model, choices=choices, usage=usage)
