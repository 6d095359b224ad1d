"""GET /openapi.json: the OpenAPI 3.1 document, made from the routes and the structs that they read and write."""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

import pelton
from pelton.http.gate import OPEN_PATHS
from pelton.http.routes import EVENTS, JSON, Route
from pelton.http.service import Service
from pelton.types import MAX_CHOICES, MAX_LOGPROBS, MAX_STOP_STRINGS, JsonObject

# What SamplingParams checks. The structs have types alone: its messages say more than msgspec's.
_LIMITS: dict[str, JsonObject] = {
    "temperature": {"minimum": 0, "maximum": 2},
    "top_p": {"exclusiveMinimum": 0, "maximum": 1},
    "top_k": {"minimum": -1, "maximum": 2**31 - 1},
    "min_p": {"minimum": 0, "maximum": 1},
    "presence_penalty": {"minimum": -2, "maximum": 2},
    "frequency_penalty": {"minimum": -2, "maximum": 2},
    "repetition_penalty": {"exclusiveMinimum": 0},
    "n": {"minimum": 1, "maximum": MAX_CHOICES},
    "max_tokens": {"minimum": 0},
    "max_completion_tokens": {"minimum": 1},
    "min_tokens": {"minimum": 0},
    "logprobs": {"minimum": 0, "maximum": MAX_LOGPROBS},
    "top_logprobs": {"minimum": 0, "maximum": MAX_LOGPROBS},
    "priority": {"minimum": -(2**31), "maximum": 2**31 - 1},
    "stop": {"maxItems": MAX_STOP_STRINGS},
    "cache_salt": {"minLength": 1},
    "request_id": {"minLength": 1, "maxLength": 256},
}
_ABOUT_TYPE = {  # by what a schema's type is, the limits that say something about it
    "integer": {"minimum", "maximum", "exclusiveMinimum"},
    "number": {"minimum", "maximum", "exclusiveMinimum"},
    "string": {"minLength", "maxLength"},
    "array": {"maxItems"},
}
_BODY_ERRORS = (
    *(HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.REQUEST_TIMEOUT),
    *(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE),
)
_PATH_PARAMETER = re.compile(r"{(\w+)(:path)?}")
_RETRY_AFTER = {"Retry-After": {"description": "Seconds", "schema": {"type": "integer", "minimum": 1}}}
_TIMEOUT_HEADER = {
    "name": "X-Request-Timeout",
    "in": "header",
    "description": "Seconds after which the request ends with a 408, or in a stream with an error event.",
    "schema": {"type": "number", "exclusiveMinimum": 0},
}


def openapi_route(described: Sequence[Route]) -> Route:
    """The route of the document, which describes itself as well."""

    @functools.lru_cache(maxsize=1)
    def document() -> bytes:
        return msgspec.json.encode(openapi_document((*described, route)))

    async def openapi(service: Service, request: Request) -> Response:
        del service, request
        return Response(document(), media_type=JSON)

    route = Route(
        method="GET",
        path="/openapi.json",
        endpoint=openapi,
        summary="This document",
        answers={JSON: JsonObject},
    )
    return route


def openapi_document(routes: Sequence[Route]) -> JsonObject:
    """The document as JSON values."""
    kinds = (kind for route in routes for kind in (route.body, route.error_body, *route.answers.values()))
    types = [kind for kind in kinds if kind]
    template = "#/components/schemas/{name}"
    schemas, components = msgspec.json.schema_components(types, schema_hook=_any_value, ref_template=template)
    schema_of = {id(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    bodies = [schema_of[id(route.body)] for route in routes if route.body is not None]
    for name in _reachable(bodies, components):
        _add_limits(components[name])
    for route in routes:
        if route.required:
            _require(components[next(_references(schema_of[id(route.body)]))], route.required)
    paths: JsonObject = {}
    for route in routes:
        path = _PATH_PARAMETER.sub(r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Pelton", "version": pelton.__version__, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "One of --api-key."}},
        },
    }


def _operation(route: Route, schema_of: Mapping[int, JsonObject]) -> JsonObject:
    is_open = route.path in OPEN_PATHS
    operation: JsonObject = {
        "operationId": f"{route.method.lower()} {route.path}",
        "summary": route.summary,
        "parameters": [
            {"name": match[1], "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for match in _PATH_PARAMETER.finditer(route.path)
        ]
        + [{"name": name, "in": "query", "required": False, "schema": schema} for name, schema in route.query.items()],
        "security": [] if is_open else [{"key": []}, {}],  # {}: a server without --api-key
        "responses": _responses(route, schema_of, is_open=is_open),
    }
    if route.body is not None:
        operation["parameters"].append(_TIMEOUT_HEADER)
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": schema_of[id(route.body)]}}}
    return operation


def _responses(route: Route, schema_of: Mapping[int, JsonObject], *, is_open: bool) -> JsonObject:
    content = {
        media_type: {"schema": _answer_schema(media_type, kind, schema_of)}
        for media_type, kind in route.answers.items()
    }
    responses: JsonObject = {"200": {"description": "OK"} | ({"content": content} if content else {})}
    statuses = {*route.errors}
    if not is_open:
        statuses |= {HTTPStatus.UNAUTHORIZED, HTTPStatus.SERVICE_UNAVAILABLE}
    if route.body is not None:
        statuses |= {*_BODY_ERRORS}
    error: JsonObject = {"content": {JSON: {"schema": schema_of[id(route.error_body)]}}} if content else {}
    for status in sorted(statuses):
        retried = status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE) and content
        responses[str(int(status))] = {
            "description": HTTPStatus(status).phrase,
            **error,
            **({"headers": _RETRY_AFTER} if retried else {}),
        }
    return responses


def _answer_schema(media_type: str, kind: object, schema_of: Mapping[int, JsonObject]) -> JsonObject:
    """The whole answer where it is JSON; of a stream, what its events hold."""
    if kind is None:
        return {"type": "string"}
    schema = schema_of[id(kind)]
    if media_type != EVENTS:
        return schema
    return {"type": "string", "description": "Server-sent events.", "x-event-schema": schema}


def _any_value(kind: type) -> JsonObject:
    if kind is object or kind is msgspec.Raw:
        return {"description": "Any JSON value."}
    raise NotImplementedError(f"no schema for {kind}")


def _reachable(schemas: Sequence[JsonObject], components: Mapping[str, JsonObject]) -> set[str]:
    """The names of the components that schemas refer to, directly or through others."""
    found: set[str] = set()
    left: list[object] = list(schemas)
    while left:
        for name in _references(left.pop()):
            if name not in found:
                found.add(name)
                left.append(components[name])
    return found


def _references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in cast("JsonObject", value).items():
            if key == "$ref":
                yield item.rpartition("/")[2]
            else:
                yield from _references(item)
    elif isinstance(value, list):
        for item in cast("list[object]", value):
            yield from _references(item)


def _require(component: JsonObject, names: Sequence[str]) -> None:
    component["required"] = [*component["required"], *names]
    for name in names:
        schema = component["properties"][name]
        del schema["default"]
        schema["anyOf"] = [option for option in schema["anyOf"] if option.get("type") != "null"]


def _add_limits(component: JsonObject) -> None:
    for name, schema in component.get("properties", {}).items():
        limits = _LIMITS.get(name, {})
        for option in cast("list[JsonObject]", schema.get("anyOf", [schema])):
            known = _ABOUT_TYPE.get(cast("Any", option.get("type")), set[str]())
            option.update({key: _tighter(key, value, option.get(key)) for key, value in limits.items() if key in known})


def _tighter(key: str, limit: float, other: float | None) -> float:
    """A struct's own limit holds where it allows less."""
    if other is None:
        return limit
    return max(limit, other) if key.lower().endswith(("minimum", "minlength")) else min(limit, other)
