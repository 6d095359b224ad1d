"""From the body of POST /v1/responses to a draft of the response: checked, and its whole conversation tokenized."""

import functools

from starlette.requests import Request

from pelton.errors import RequestError
from pelton.http.gate import TENANT
from pelton.http.openai.chat import chat_job
from pelton.http.openai.responses_api.body import ResponsesBody
from pelton.http.openai.responses_api.chat_body import PLAIN_TEXT, chat_body, own_names, wants_logprobs
from pelton.http.openai.responses_api.items import input_items
from pelton.http.openai.responses_api.messages import chat_messages, is_unfinished
from pelton.http.openai.responses_api.run import Draft
from pelton.http.openai.responses_api.shapes import ReasoningConfig, Response, TextConfig
from pelton.http.openai.responses_api.truncation import fitting_messages
from pelton.http.openai.turns import ChatJob
from pelton.http.service import Service
from pelton.types import JsonObject


async def draft_response(service: Service, request: Request, body: ResponsesBody) -> Draft:
    """Check a body, find what it goes on from, and tokenize both.

    Raises:
        RequestError: names the field; or the queue is full.
    """
    tenant = request.scope[TENANT]
    earlier = _earlier_items(service, tenant, body.previous_response_id)
    items = [*earlier, *input_items(body.input, earlier, functools.partial(service.responses.item, tenant))]
    chat = chat_body(body, chat_messages(body.instructions, items), continues=is_unfinished(items))
    try:
        if body.truncation == "auto":
            chat.messages = await fitting_messages(service, chat)
        job = await chat_job(service, request, chat, prefix="resp_")
    except RequestError as error:
        raise own_names(error) from None
    if body.request_id is not None and service.responses.has(tenant, job.generation.id):
        raise RequestError("request_id: there is a response with this id already", param="request_id")
    return Draft(tenant=tenant, job=job, items=items, response=_response(body, job))


def _earlier_items(service: Service, tenant: str, previous_id: str | None) -> list[JsonObject]:
    """The conversation that ends with a kept response."""
    if previous_id is None:
        return []
    param = "previous_response_id"
    try:
        previous = service.responses.get(tenant, previous_id)
    except RequestError:
        raise RequestError(
            f"Previous response with id {previous_id[:256]!r} not found.",
            param=param,
            reason="previous_response_not_found",
        ) from None
    if previous.running is not None:
        raise RequestError(f"The response {previous_id!r} is not complete yet", param=param)
    return previous.conversation()


def _response(body: ResponsesBody, job: ChatJob) -> Response:
    """The response before it begins: what the body asks for, with the defaults filled in."""
    generation = job.generation
    params = generation.params
    reasoning = body.reasoning
    text_format = body.text.format if body.text is not None else None
    return Response(
        id=generation.id,
        created_at=generation.created,
        status="queued" if body.background else "in_progress",
        background=bool(body.background),
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        metadata=body.metadata or {},
        model=generation.model,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        reasoning=ReasoningConfig(
            effort=None if reasoning is None else reasoning.effort,
            summary=None if reasoning is None else reasoning.summary or reasoning.generate_summary,
        ),
        safety_identifier=body.safety_identifier,
        store=body.store is not False,
        temperature=params.temperature,
        text=TextConfig(format=text_format or PLAIN_TEXT),
        tool_choice=body.tool_choice or "auto",
        tools=body.tools or [],
        top_logprobs=(body.top_logprobs or 0) if wants_logprobs(body) else 0,
        top_p=params.top_p,
        truncation=body.truncation or "disabled",
        user=body.user,
    )
