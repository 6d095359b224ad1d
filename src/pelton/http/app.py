"""The HTTP application: routes, error answers and the gate, over any EngineClient."""

import functools
import time
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from pelton.engine.protocol import EngineClient
from pelton.errors import EngineDeadError, RequestError
from pelton.http import probes
from pelton.http.body import IGNORED
from pelton.http.errors import as_request_error, error_response
from pelton.http.gate import Gate, Lifecycle
from pelton.http.metrics import ServerMetrics, metrics_registry
from pelton.http.openai import chat, completions, models, tokenization
from pelton.http.service import Service, root_model_name

Endpoint = Callable[[Service, Request], Awaitable[Response]]

_ROUTES: dict[tuple[str, str], Endpoint] = {
    ("POST", "/v1/completions"): completions.create_completion,
    ("POST", "/v1/chat/completions"): chat.create_chat_completion,
    ("GET", "/v1/models"): models.list_models,
    ("GET", "/v1/models/{model:path}"): models.get_model,
    ("POST", "/tokenize"): tokenization.tokenize,
    ("POST", "/detokenize"): tokenization.detokenize,
    ("GET", "/health"): probes.health,
    ("GET", "/ping"): probes.ping,
    ("POST", "/ping"): probes.ping,
    ("GET", "/version"): probes.version,
    ("GET", "/load"): probes.load,
    ("GET", "/metrics"): probes.metrics,
}


def create_app(engine: EngineClient, lifecycle: Lifecycle | None = None) -> Starlette:
    """The ASGI application. `lifecycle` is shared with a server that drains; else the app has its own."""
    config = engine.config
    root_model = root_model_name(config)
    model = config.served_model_name or root_model
    metrics = ServerMetrics()
    service = Service(
        engine=engine,
        metrics=metrics,
        registry=metrics_registry(engine, metrics, model),
        lifecycle=lifecycle or Lifecycle(),
        model=model,
        root_model=root_model,
        created=int(time.time()),
    )

    async def answer_error(request: Request, error: Exception) -> Response:
        """For a bug, Starlette raises on after this answer, and the server logs the traceback."""
        del request
        metrics.num_errors[as_request_error(error).status] += 1
        return error_response(error)

    handled = (RequestError, EngineDeadError, HTTPException, ClientDisconnect, Exception)
    return Starlette(
        routes=[
            Route(path, functools.partial(_answer, endpoint, service), methods=[method])
            for (method, path), endpoint in _ROUTES.items()
        ],
        middleware=[Middleware(Gate, api_keys=config.api_key, lifecycle=service.lifecycle)],
        exception_handlers=dict.fromkeys(handled, answer_error),
    )


async def _answer(endpoint: Endpoint, service: Service, request: Request) -> Response:
    """The endpoint's answer. Fields that it does not know are accepted but named: typing errors must not go unseen."""
    response = await endpoint(service, request)
    if ignored := request.scope.get(IGNORED):
        response.headers["X-Ignored-Fields"] = ", ".join(ignored)
    return response
