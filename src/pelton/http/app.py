"""The HTTP application: routes, error answers and the gate, over any EngineClient."""

import time

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from pelton.config import EngineConfig
from pelton.engine.protocol import EngineClient
from pelton.errors import EngineDeadError, RequestError
from pelton.http import invocations, probes
from pelton.http.anthropic.errors import error_body_for
from pelton.http.anthropic.messages import ROUTES as MESSAGE_ROUTES
from pelton.http.errors import as_request_error, error_response
from pelton.http.gate import Gate, Lifecycle
from pelton.http.limits import HEADERS, Clock, Limits
from pelton.http.metrics import CONTENT_TYPE, ServerMetrics, metrics_registry
from pelton.http.openai import chat, completions, models, tokenization
from pelton.http.openai.requests import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from pelton.http.openai.responses import (
    ChatChunk,
    ChatCompletion,
    Completion,
    Detokenized,
    ModelCard,
    ModelList,
    Tokenized,
)
from pelton.http.openai.responses_api.routes import ROUTES as RESPONSE_ROUTES
from pelton.http.openai.responses_api.store import ResponseStore
from pelton.http.openapi import openapi_route
from pelton.http.pooling.embeddings import create_embedding
from pelton.http.pooling.routes import ROUTES as POOLING_ROUTES
from pelton.http.pooling.scores import create_ranking, create_score
from pelton.http.routes import EVENTS, JSON, Route, starlette_routes
from pelton.http.service import Service, root_model_name
from pelton.http.text_pool import TextPool
from pelton.structured.checker import GrammarChecker
from pelton.types import JsonObject

_POSTS = (
    Route(
        method="POST",
        path="/v1/completions",
        endpoint=completions.create_completion,
        summary="Continue one prompt or several",
        body=CompletionBody,
        required=("prompt",),
        answers={JSON: Completion, EVENTS: Completion},
    ),
    Route(
        method="POST",
        path="/v1/chat/completions",
        endpoint=chat.create_chat_completion,
        summary="Answer a chat",
        body=ChatBody,
        required=("messages",),
        answers={JSON: ChatCompletion, EVENTS: ChatChunk},
    ),
    Route(
        method="POST",
        path="/tokenize",
        endpoint=tokenization.tokenize,
        summary="Token ids of a prompt or a chat",
        body=TokenizeBody,
        answers={JSON: Tokenized},
    ),
    Route(
        method="POST",
        path="/detokenize",
        endpoint=tokenization.detokenize,
        summary="Text of token ids",
        body=DetokenizeBody,
        answers={JSON: Detokenized},
    ),
)
_GETS = (
    Route(
        method="GET",
        path="/v1/models",
        endpoint=models.list_models,
        summary="The models that are served",
        answers={JSON: ModelList},
    ),
    Route(
        method="GET",
        path="/v1/models/{model:path}",
        endpoint=models.get_model,
        summary="One of the models",
        answers={JSON: ModelCard},
        errors=(404,),
    ),
    Route(
        method="GET",
        path="/health",
        endpoint=probes.health,
        summary="Readiness: 200 while requests are taken and the engine makes progress",
        errors=(503,),
    ),
    Route(
        method="GET",
        path="/ping",
        endpoint=probes.ping,
        summary="Liveness: 200 unless the engine is dead or stuck",
        errors=(503,),
    ),
    Route(
        method="POST",
        path="/ping",
        endpoint=probes.ping,
        summary="Liveness: 200 unless the engine is dead or stuck",
        errors=(503,),
    ),
    Route(
        method="GET",
        path="/version",
        endpoint=probes.version,
        summary="The server's version",
        answers={JSON: probes.Version},
    ),
    Route(
        method="GET",
        path="/load",
        endpoint=probes.load,
        summary="Requests in flight in this server",
        answers={JSON: probes.Load},
    ),
    Route(
        method="GET",
        path="/metrics",
        endpoint=probes.metrics,
        summary="Metrics in the Prometheus text format",
        answers={CONTENT_TYPE: None},
    ),
)
# Which endpoint a body without a path is for, by a field that only its bodies have.
_INVOKED = {
    "messages": chat.create_chat_completion,
    "prompt": completions.create_completion,
    "input": create_embedding,
    "text_1": create_score,
    "query": create_ranking,
}
_INVOCATIONS = Route(
    method="POST",
    path="/invocations",
    endpoint=invocations.dispatcher(_INVOKED),
    summary="What SageMaker calls: a chat, a completion or another body of /v1, told apart by its fields",
    body=JsonObject,
    answers={JSON: JsonObject, EVENTS: JsonObject},
)
_ALL = (*_POSTS, *RESPONSE_ROUTES, *MESSAGE_ROUTES, *POOLING_ROUTES, _INVOCATIONS, *_GETS)
ROUTES = (*_ALL, openapi_route(_ALL))


def create_app(engine: EngineClient, lifecycle: Lifecycle | None = None, *, clock: Clock = time.monotonic) -> Starlette:
    """The ASGI application. `lifecycle` is shared with a server that drains; else the app has its own.

    Limits by API key go by `clock` (seconds).
    """
    service = _service(engine, lifecycle or Lifecycle())
    config, metrics = engine.config, service.metrics

    async def answer_error(request: Request, error: Exception) -> Response:
        """For a bug, Starlette raises on after this answer, and the server logs the traceback."""
        metrics.num_errors[as_request_error(error).status] += 1
        return error_response(error, error_body_for(request.scope["path"]))

    handled = (RequestError, EngineDeadError, HTTPException, ClientDisconnect, Exception)
    return Starlette(
        routes=starlette_routes(service, ROUTES, Limits(config, metrics, clock)),
        middleware=[
            *_cross_origin(config),
            Middleware(Gate, api_keys=config.api_key, lifecycle=service.lifecycle, metrics=metrics),
        ],
        exception_handlers=dict.fromkeys(handled, answer_error),
    )


def _service(engine: EngineClient, lifecycle: Lifecycle) -> Service:
    metrics = ServerMetrics()
    root_model = root_model_name(engine.config)
    model = engine.config.served_model_name or root_model
    return Service(
        engine=engine,
        metrics=metrics,
        registry=metrics_registry(engine, metrics, model),
        lifecycle=lifecycle,
        responses=ResponseStore(),
        text_pool=TextPool(),
        grammars=GrammarChecker(engine.tokenizer),
        model=model,
        root_model=root_model,
        created=int(time.time()),
    )


def _cross_origin(config: EngineConfig) -> list[Middleware]:
    """Outside of the gate: a browser asks without a key whether it may ask with one."""
    if not config.allowed_origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=config.allowed_origins,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=HEADERS,
        )
    ]
