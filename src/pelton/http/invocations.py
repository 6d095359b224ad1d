"""POST /invocations: what SageMaker calls. The body's fields tell which endpoint is meant."""

from collections.abc import Mapping

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from pelton.errors import RequestError
from pelton.http.body import check_nesting, read_body
from pelton.http.routes import Endpoint
from pelton.http.service import Service

_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def dispatcher(endpoints: Mapping[str, Endpoint]) -> Endpoint:
    """An endpoint that hands on to one of `endpoints`: the first whose key is a field of the body."""

    async def invocations(service: Service, request: Request) -> Response:
        body = await read_body(request)
        fields = _fields(body)
        for field, endpoint in endpoints.items():
            if field in fields:
                return await endpoint(service, _with_body(request, body))
        raise RequestError(f"The body must have one of the fields {', '.join(endpoints)}", param=next(iter(endpoints)))

    return invocations


def _fields(body: bytes) -> Mapping[str, object]:
    check_nesting(body)
    try:
        return _fields_decoder.decode(body)
    except msgspec.DecodeError as error:  # also what is no object
        raise RequestError(f"The body is not a JSON object: {error}") from None


def _with_body(request: Request, body: bytes) -> Request:
    """The request as if its body had not been read."""
    sent: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return sent.pop() if sent else await request.receive()

    return Request(request.scope, receive)
