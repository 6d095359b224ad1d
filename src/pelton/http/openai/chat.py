"""POST /v1/chat/completions."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from pelton.http.body import read_json
from pelton.http.connection import while_connected
from pelton.http.openai.bad_words import with_bad_words
from pelton.http.openai.constraints import constrained
from pelton.http.openai.generation import Generation, generation, refuse_when_full
from pelton.http.openai.logprobs import TextPosition
from pelton.http.openai.models import check_model
from pelton.http.openai.parameters import chat_params
from pelton.http.openai.parts import Part, Reasoning, Text, ToolCallArguments, ToolCallStart
from pelton.http.openai.prompt_logprobs import by_token_id, off_loop_if_long
from pelton.http.openai.prompts import chat_completion_prompt
from pelton.http.openai.requests import ChatBody
from pelton.http.openai.responses import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatMessage,
    FunctionCall,
    ToolCall,
    Usage,
)
from pelton.http.openai.run import Choice
from pelton.http.openai.stream import turn_stream
from pelton.http.openai.turns import ChatJob, Turn, collect_turns
from pelton.http.service import Service
from pelton.http.tools.definitions import tool_use
from pelton.http.tools.turn import constrain_turn, new_parser, opens_reasoning, turn_style
from pelton.types import Delta

_decoder = msgspec.json.Decoder(ChatBody)
_encode = msgspec.json.Encoder().encode


async def create_chat_completion(service: Service, request: Request) -> Response:
    """Answer a chat; streamed or whole."""
    body = await read_json(request, _decoder)
    job = await chat_job(service, request, body, prefix="chatcmpl-")
    if body.stream:
        return turn_stream(service, job, _Chunks(job.generation))
    content = await while_connected(request.receive, _whole(service, job))
    return Response(content, media_type="application/json")


async def chat_job(service: Service, request: Request, body: ChatBody, *, prefix: str) -> ChatJob:
    """Check and tokenize a chat, of this endpoint or of another one that was written as such. `prefix` starts the id.

    Raises:
        RequestError: names the field; or the queue is full.
    """
    check_model(service, body.model)
    tokenizer = service.engine.tokenizer
    use = tool_use(body)
    if use.mode == "none":
        body = msgspec.structs.replace(body, tools=None)  # a model that does not see tools does not try to call them
    params = chat_params(body, vocab_size=tokenizer.vocab_size, defaults=service.engine.info.sampling_defaults)
    style = turn_style(service.engine.config, tokenizer, body, use)
    params = msgspec.structs.replace(params, shown_special_ids=style.shown_special_ids(tokenizer))
    params = await with_bad_words(params, body.bad_words, tokenizer)
    refuse_when_full(service)
    params = await constrained(service, body, params)
    prompt = await chat_completion_prompt(service, body)
    is_open = style.has_reasoning and opens_reasoning(tokenizer, prompt.token_ids)
    params = await constrain_turn(service, params, style, use, is_open=is_open)
    job = generation(service, request, body, prompts=[prompt], params=params, prefix=prefix)
    parser = new_parser(style, use, is_open=is_open, is_shown=body.include_reasoning is not False)
    return ChatJob(generation=job, new_parser=parser)


async def _whole(service: Service, chat: ChatJob) -> bytes:
    job = chat.generation
    turns, usage = await collect_turns(service, chat)

    def encoded() -> bytes:
        count, entries = job.prompt_logprobs, turns[0].choice.prompt_logprobs
        return _encode(
            ChatCompletion(
                id=job.id,
                created=job.created,
                model=job.model,
                choices=[_whole_choice(job, turn) for turn in turns],
                usage=usage,
                prompt_token_ids=list(job.prompts[0].token_ids) if job.return_token_ids else UNSET,
                prompt_logprobs=UNSET if count is None else by_token_id(job.names, entries, count),
            )
        )

    return await off_loop_if_long(job.prompts, job.params, encoded)


def _whole_choice(job: Generation, turn: Turn) -> ChatChoice:
    choice = turn.choice
    return ChatChoice(
        index=choice.index,
        message=_message(turn),
        logprobs=None if choice.logprobs is None else job.names.chat(turn.positions),
        finish_reason=turn.finish_reason,
        stop_reason=choice.stop_reason,
        token_ids=turn.token_ids if job.return_token_ids else UNSET,
    )


def _message(turn: Turn) -> ChatMessage:
    """Content is null beside calls, but for calls that the client named, which are known to be all there is."""
    calls = [
        ToolCall(id=call.id, type="function", function=FunctionCall(name=call.name, arguments=call.arguments))
        for call in turn.calls
    ]
    return ChatMessage(
        content=turn.text or (None if calls and turn.finish_reason != "stop" else ""),
        reasoning=turn.reasoning or UNSET,
        tool_calls=calls or UNSET,
    )


def _delta(parts: Sequence[Part]) -> ChatDelta:
    """Parts as one delta, which has each call once: clients join lists by index."""
    texts: dict[type[Part], str] = {}
    calls: dict[int, ToolCall] = {}
    for part in parts:
        match part:
            case Text(text) | Reasoning(text):
                texts[type(part)] = texts.get(type(part), "") + text
            case ToolCallStart(index, call_id, name):
                function = FunctionCall(name=name, arguments="")
                calls[index] = ToolCall(index=index, id=call_id, type="function", function=function)
            case ToolCallArguments(index, text):
                call = calls.setdefault(index, ToolCall(index=index, function=FunctionCall(arguments="")))
                call.function.arguments += text
    return ChatDelta(
        content=texts.get(Text, UNSET),
        reasoning=texts.get(Reasoning, UNSET),
        tool_calls=list(calls.values()) or UNSET,
    )


class _Chunks:
    """Chunks of a streamed chat completion; see TurnFormat."""

    def __init__(self, job: Generation) -> None:
        self._job = job

    def chunks(
        self,
        choice: Choice,
        parts: Sequence[Part],
        delta: Delta,
        positions: Sequence[TextPosition],
        reason: str | None,
        usage: Usage | None,
    ) -> list[msgspec.Struct]:
        """The role before anything else, then the parts, and a finish chunk with an empty delta."""
        job = self._job
        shown: list[ChatChunkChoice] = []
        if not choice.has_begun:
            shown.append(ChatChunkChoice(index=choice.index, delta=ChatDelta(role="assistant", content="")))
        if parts or positions or (job.return_token_ids and delta.token_ids):
            shown.append(
                ChatChunkChoice(
                    index=choice.index,
                    delta=_delta(parts) if parts else ChatDelta(content=""),
                    logprobs=None if choice.logprobs is None else job.names.chat(positions),
                    token_ids=list(delta.token_ids) if job.return_token_ids else UNSET,
                )
            )
        if reason is not None:
            shown.append(
                ChatChunkChoice(
                    index=choice.index, delta=ChatDelta(), finish_reason=reason, stop_reason=delta.stop_reason
                )
            )
        chunks = [self._chunk([part], usage) for part in shown]
        if chunks and not choice.has_begun and choice.index == 0 and job.return_token_ids:
            chunks[0].prompt_token_ids = list(job.prompts[0].token_ids)
        return list[msgspec.Struct](chunks)

    def part_chunk(self, index: int, part: Part) -> ChatChunk:
        return self._chunk([ChatChunkChoice(index=index, delta=_delta([part]))])

    def usage_chunk(self, usage: Usage) -> ChatChunk:
        return self._chunk([], usage)

    def _chunk(self, choices: list[ChatChunkChoice], usage: Usage | None = None) -> ChatChunk:
        job = self._job
        return ChatChunk(id=job.id, created=job.created, model=job.model, choices=choices, usage=usage)
