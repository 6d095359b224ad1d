"""Making a response: while a client waits for it, or in the background."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from pelton.http.openai.answers import UsageCounter
from pelton.http.openai.logprobs import TextPosition
from pelton.http.openai.parts import Part
from pelton.http.openai.responses_api.event_log import EventLog
from pelton.http.openai.responses_api.shapes import (
    InputTokensDetails,
    OutputTokensDetails,
    Response,
    ResponseUsage,
)
from pelton.http.openai.responses_api.store import StoredResponse, conversation_json
from pelton.http.openai.responses_api.tokens import ReasoningCounter
from pelton.http.openai.responses_api.writer import Put, ResponseWriter
from pelton.http.openai.run import Choice, OnEnd
from pelton.http.openai.turns import ChatJob, TurnRun
from pelton.http.service import Service
from pelton.http.sse import EventStream
from pelton.types import Delta, JsonObject

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A request, checked and tokenized, and the response to it as it is before it begins.

    `items` are all that it answers, those of earlier responses included.
    """

    tenant: str
    job: ChatJob
    items: list[JsonObject]
    response: Response


class ResponseRun:
    """A response under way. `close` must be called when it has ended, or to end it early; then it is not kept.

    Args:
        put: takes the events, if anybody wants them.
        on_end: is called once, with the error if the response failed before its client was told anything. Any later
            error is a part of the response. What is to be kept is kept by then.
        at_once: tell of the response before the engine is asked; else it begins with the first token.

    Raises:
        RequestError: the queue is full.
    """

    def __init__(
        self,
        service: Service,
        draft: Draft,
        put: Put | None,
        on_end: OnEnd,
        *,
        at_once: bool = False,
        log: EventLog | None = None,
    ) -> None:
        generation = draft.job.generation
        self._service = service
        self._draft = draft
        self._log = log
        self._on_end = on_end
        self._writer = ResponseWriter(draft.response, generation.names, put)
        self._usage = UsageCounter(generation)
        self._reasoning = ReasoningCounter(service.engine.tokenizer, generation.params)
        self._is_told = at_once
        self._is_told_with_tokens = put is not None
        self._has_tokens = False
        self._is_closed = False
        if at_once:
            self._writer.begin()
        self._turn = TurnRun(service, draft.job, self._on_parts, self._on_turn_end)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._turn.close()

    def cancel(self) -> None:
        """End it early, but keep what there is; it must still be closed."""
        self._writer.cancel(self._response_usage())
        self._end()

    def _on_parts(
        self, choice: Choice, parts: list[Part], delta: Delta, positions: Sequence[TextPosition], reason: str | None
    ) -> None:
        if not self._has_tokens:
            self._has_tokens = True
            if not self._is_told:
                self._writer.begin()
                self._is_told = self._is_told_with_tokens
            self._writer.start()
        self._usage.add(choice, delta)
        self._reasoning.push(delta, parts)
        self._writer.add(delta.text, parts, positions)
        if reason is not None:
            self._writer.finish(reason, self._response_usage())

    def _on_turn_end(self, error: Exception | None) -> None:
        if error is not None and not self._is_told:
            self._on_end(error)
            return
        if error is not None:
            self._writer.fail(error)
        self._end()

    def _end(self) -> None:
        draft = self._draft
        response = draft.response
        if response.store:
            stored = StoredResponse(
                body=_encode(response),
                items=conversation_json(draft.items, response.output),
                output_ids=tuple(item.id for item in response.output),
                num_input_items=len(draft.items),
                background=response.background,
                log=self._log,
            )
            self._service.responses.keep(draft.tenant, response.id, stored)
        self._writer.tell_end()
        self._on_end(None)

    def _response_usage(self) -> ResponseUsage:
        usage = self._usage.usage()
        return ResponseUsage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=InputTokensDetails(cached_tokens=usage.prompt_tokens_details.cached_tokens),
            output_tokens=usage.completion_tokens,
            output_tokens_details=OutputTokensDetails(reasoning_tokens=self._reasoning.num_tokens),
            total_tokens=usage.total_tokens,
        )


async def whole_response(service: Service, draft: Draft) -> Response:
    """The response when it is complete. Raises what TurnRun raises or ends with."""
    ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def on_end(error: Exception | None) -> None:
        if not ended.done():
            ended.set_result(error)

    run = ResponseRun(service, draft, None, on_end)
    try:
        error = await ended
    finally:
        run.close()
    if error is not None:
        raise error
    return draft.response


def streamed_response(service: Service, draft: Draft) -> EventStream:
    """The answer that makes the response while it is sent."""
    return EventStream(lambda outbox: ResponseRun(service, draft, outbox.put, outbox.end), no_ending)


def no_ending(error: Exception | None) -> bytes:
    """These streams end with an event of the response itself."""
    del error
    return b""


class BackgroundRun:
    """A response that goes on without a connection. It is kept from the start, and counts as in flight.

    `log` takes its events, if they are to be streamed. `carry_on` counts it for its key; see CARRY_ON.

    Raises:
        RequestError: the queue is full.
    """

    def __init__(
        self, service: Service, draft: Draft, log: EventLog | None, carry_on: Callable[[], Callable[[], None]]
    ) -> None:
        self.response = draft.response
        self._service = service
        self._log = log
        self._has_ended = False
        put = None if log is None else log.put
        self._run: ResponseRun | None = None
        self._count_no_more: Callable[[], None] | None = None
        run = ResponseRun(service, draft, put, self._on_end, at_once=True, log=log)
        if self._has_ended:  # the engine refused it at once
            run.close()
            return
        self._run = run
        self._count_no_more = carry_on()
        service.lifecycle.begin()
        stored = StoredResponse(
            body=b"",
            items=conversation_json(draft.items, ()),
            num_input_items=len(draft.items),
            background=True,
            log=log,
            running=self,
        )
        service.responses.keep(draft.tenant, draft.response.id, stored)

    def cancel(self) -> None:
        if self._run is not None:
            self._run.cancel()

    def _on_end(self, error: Exception | None) -> None:
        assert error is None, "a response in the background has errors of its own"
        self._has_ended = True
        if self._log is not None:
            self._log.end()
        if self._run is not None and self._count_no_more is not None:
            self._run.close()
            self._count_no_more()
            self._service.lifecycle.end()
