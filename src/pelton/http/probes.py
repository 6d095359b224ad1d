"""What load balancers, dashboards and humans ask: /health, /ping, /version, /load, /metrics."""

from http import HTTPStatus

import msgspec
from starlette.requests import Request
from starlette.responses import Response

import pelton
from pelton.http.metrics import CONTENT_TYPE, render_metrics
from pelton.http.service import Service

_encode = msgspec.json.Encoder().encode


class Version(msgspec.Struct):
    version: str


class Load(msgspec.Struct):
    server_load: int


async def health(service: Service, request: Request) -> Response:
    """Readiness: 200 while requests are taken and the engine makes progress."""
    del request
    ready = service.engine.health == "ok" and not service.lifecycle.draining
    return Response(status_code=HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE)


async def ping(service: Service, request: Request) -> Response:
    """Liveness: 200 unless the engine is dead or stuck; a server that drains is alive."""
    del request
    alive = service.engine.health in ("starting", "ok")
    return Response(status_code=HTTPStatus.OK if alive else HTTPStatus.SERVICE_UNAVAILABLE)


async def version(service: Service, request: Request) -> Response:
    del service, request
    return Response(_encode(Version(pelton.__version__)), media_type="application/json")


async def load(service: Service, request: Request) -> Response:
    """Requests in flight in this server."""
    del request
    return Response(_encode(Load(service.lifecycle.num_active)), media_type="application/json")


async def metrics(service: Service, request: Request) -> Response:
    del request
    return Response(render_metrics(service.registry), media_type=CONTENT_TYPE)
