"""POST /v1/responses, and what can be done with a response that is kept."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response as Answer

from pelton.errors import RequestError
from pelton.http.body import read_json
from pelton.http.connection import while_connected
from pelton.http.gate import TENANT
from pelton.http.limits import CARRY_ON
from pelton.http.openai.responses_api.body import ResponsesBody
from pelton.http.openai.responses_api.draft import draft_response
from pelton.http.openai.responses_api.event_log import EventLog
from pelton.http.openai.responses_api.query import QueryReader
from pelton.http.openai.responses_api.run import BackgroundRun, no_ending, streamed_response, whole_response
from pelton.http.openai.responses_api.shapes import Deleted, InputTokens, ItemList, Response
from pelton.http.openai.responses_api.store import StoredResponse
from pelton.http.routes import EVENTS, JSON, Route
from pelton.http.service import Service
from pelton.http.sse import EventStream
from pelton.types import JsonObject

MAX_LISTED = 100
DEFAULT_LISTED = 20

_decoder = msgspec.json.Decoder(ResponsesBody)
_encode = msgspec.json.Encoder().encode


async def create_response(service: Service, request: Request) -> Answer:
    """Answer input items; whole, streamed, or in the background."""
    body = await read_json(request, _decoder)
    draft = await draft_response(service, request, body)
    if body.background:
        log = EventLog() if body.stream else None
        run = BackgroundRun(service, draft, log, request.scope[CARRY_ON])
        return _json(_encode(run.response)) if log is None else _events(log, after=-1)
    if body.stream:
        return streamed_response(service, draft)
    response = await while_connected(request.receive, whole_response(service, draft))
    return _json(_encode(response))


async def count_input_tokens(service: Service, request: Request) -> Answer:
    """How many input tokens a body would have."""
    body = await read_json(request, _decoder)
    draft = await draft_response(service, request, body)
    return _json(_encode(InputTokens(input_tokens=draft.job.generation.num_prompt_tokens)))


async def get_response(service: Service, request: Request) -> Answer:
    """A kept response as it is now, or its events from `starting_after` on."""
    stored = _stored(service, request)
    query = QueryReader(request)
    starting_after = query.integer("starting_after", 0, 2**31 - 1)
    if not query.flag("stream"):
        if starting_after is not None:
            raise RequestError("starting_after is for streams: set stream to true", param="starting_after")
        return _json(stored.json())
    if stored.log is None:
        raise RequestError("Only a response that was made with background and stream can be streamed", param="stream")
    return _events(stored.log, after=-1 if starting_after is None else starting_after)


async def cancel_response(service: Service, request: Request) -> Answer:
    """End a response in the background early. One that has ended stays as it is."""
    stored = _stored(service, request)
    if not stored.background:
        raise RequestError("Only a response in the background can be cancelled", param="response_id")
    if stored.running is not None:
        stored.running.cancel()
        stored = _stored(service, request)
    return _json(stored.json())


async def delete_response(service: Service, request: Request) -> Answer:
    """Forget a response; one that is under way is cancelled."""
    stored = _stored(service, request)
    if stored.running is not None:
        stored.running.cancel()
    response_id = request.path_params["response_id"]
    service.responses.remove(request.scope[TENANT], response_id)
    return _json(_encode(Deleted(id=response_id)))


async def list_input_items(service: Service, request: Request) -> Answer:
    """The items that a response answers, those of the responses before it included; the last one first by default."""
    stored = _stored(service, request)
    query = QueryReader(request)
    limit = query.integer("limit", 1, MAX_LISTED) or DEFAULT_LISTED
    order = query.choice("order", ("asc", "desc")) or "desc"
    items = stored.conversation()[: stored.num_input_items]
    if order == "desc":
        items.reverse()
    after = query.text("after")
    if after is not None:
        items = _items_after(items, after)
    page = items[:limit]
    answer = ItemList(
        data=page,
        first_id=page[0]["id"] if page else None,
        last_id=page[-1]["id"] if page else None,
        has_more=len(items) > limit,
    )
    return _json(_encode(answer))


def _items_after(items: list[JsonObject], item_id: str) -> list[JsonObject]:
    for position, item in enumerate(items):
        if item["id"] == item_id:
            return items[position + 1 :]
    raise RequestError(f"after: there is no item {item_id[:256]!r}", param="after")


def _stored(service: Service, request: Request) -> StoredResponse:
    return service.responses.get(request.scope[TENANT], request.path_params["response_id"])


def _events(log: EventLog, *, after: int) -> EventStream:
    return EventStream(lambda outbox: log.listen(outbox, after=after), no_ending)


def _json(data: bytes) -> Answer:
    return Answer(data, media_type=JSON)


_ONE = "/v1/responses/{response_id}"
ROUTES = (
    Route(
        method="POST",
        path="/v1/responses",
        endpoint=create_response,
        summary="Answer input items, and keep the answer",
        body=ResponsesBody,
        answers={JSON: Response, EVENTS: JsonObject},
    ),
    Route(
        method="POST",
        path="/v1/responses/input_tokens",
        endpoint=count_input_tokens,
        summary="How many input tokens a body would have",
        body=ResponsesBody,
        answers={JSON: InputTokens},
    ),
    Route(
        method="GET",
        path=_ONE,
        endpoint=get_response,
        summary="A response as it is now, or the events of one in the background",
        answers={JSON: Response, EVENTS: JsonObject},
        query={"stream": {"type": "boolean"}, "starting_after": {"type": "integer", "minimum": 0}},
        errors=(400, 404),
    ),
    Route(
        method="DELETE",
        path=_ONE,
        endpoint=delete_response,
        summary="Forget a response; one that is under way is cancelled",
        answers={JSON: Deleted},
        errors=(404,),
    ),
    Route(
        method="POST",
        path=f"{_ONE}/cancel",
        endpoint=cancel_response,
        summary="End a response in the background early",
        answers={JSON: Response},
        errors=(400, 404),
    ),
    Route(
        method="GET",
        path=f"{_ONE}/input_items",
        endpoint=list_input_items,
        summary="The items that a response answers",
        answers={JSON: ItemList},
        query={
            "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LISTED, "default": DEFAULT_LISTED},
            "order": {"type": "string", "enum": ["asc", "desc"], "default": "desc"},
            "after": {"type": "string", "description": "Id of the item before the first one"},
        },
        errors=(400, 404),
    ),
)
