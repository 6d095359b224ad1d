"""What a route is: how it is reached, what runs there, and what its page in the OpenAPI document says."""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute

from pelton.http.errors import ErrorBody
from pelton.http.limits import Limiter, Limits
from pelton.http.service import Service
from pelton.types import JsonObject

Endpoint = Callable[[Service, Request], Awaitable[Response]]
JSON, EVENTS = "application/json", "text/event-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One method of one path.

    Args:
        body: the type of the JSON body. Routes with a body cost compute: limits hold for them.
        required: fields that the body must have, though its type lets them be null: what is missing is told by us.
        answers: what a 200 brings, by media type; a type is JSON of it, None is described by the media type alone.
            Without any, answers and errors have no body.
        query: schemas of the parameters in the query string, by name; all are optional.
        errors: the statuses of error answers beside those of every route.
        error_body: the type of the JSON of error answers.
    """

    method: str
    path: str
    endpoint: Endpoint
    summary: str
    body: object = None
    required: tuple[str, ...] = ()
    answers: Mapping[str, object] = field(default_factory=dict[str, object])
    query: Mapping[str, JsonObject] = field(default_factory=dict[str, JsonObject])
    errors: tuple[int, ...] = ()
    error_body: object = ErrorBody


def starlette_routes(service: Service, routes: Sequence[Route], limits: Limits) -> list[StarletteRoute]:
    """One Starlette route a path, so that a 405 names every method of the path in Allow."""
    by_path: dict[str, dict[str, Endpoint]] = defaultdict(dict)
    for route in routes:
        by_path[route.path][route.method] = route.endpoint
    limited = {route.path for route in routes if route.body is not None}
    return [
        StarletteRoute(
            path,
            _dispatcher(service, endpoints),
            methods=list(endpoints),
            middleware=[Middleware(Limiter, limits=limits)] if path in limited else [],
        )
        for path, endpoints in by_path.items()
    ]


def _dispatcher(service: Service, endpoints: Mapping[str, Endpoint]) -> Callable[[Request], Awaitable[Response]]:
    async def dispatch(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await endpoints[method](service, request)

    return dispatch
