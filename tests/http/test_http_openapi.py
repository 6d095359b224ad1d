"""The OpenAPI document: every route is in it, and what it says is what the server does."""

from typing import Any

import pytest
from starlette.routing import Route

from pelton.http.app import create_app
from pelton.http.openapi import _LIMITS

from fakes import Client, FakeEngine

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    response = Client.of(FakeEngine()).get("/openapi.json")
    assert response.headers["content-type"] == "application/json"
    return response.json()


def test_every_route_of_the_app_is_in_the_document(document: dict[str, Any]):
    served = {
        (route.path.replace(":path}", "}"), method.lower())
        for route in create_app(FakeEngine()).routes
        if isinstance(route, Route)
        for method in route.methods or ()
        if method != "HEAD"
    }
    described = {(path, method) for path, operations in document["paths"].items() for method in operations}
    assert described == served
    assert ("/v1/chat/completions", "post") in described


def test_every_operation_names_itself_and_its_errors(document: dict[str, Any]):
    operations = [
        (path, operation) for path, operations in document["paths"].items() for operation in operations.values()
    ]
    assert len({operation["operationId"] for _, operation in operations}) == len(operations)
    for path, operation in operations:
        assert operation["summary"], path
        if "requestBody" in operation:
            assert {"200", "400", "401", "404", "408", "413", "429", "503"} <= operation["responses"].keys(), path


def test_every_reference_leads_to_a_component(document: dict[str, Any]):
    names = document["components"]["schemas"].keys()
    references = _references(document)
    assert len(references) > 20
    assert {reference.removeprefix("#/components/schemas/") for reference in references} <= names


def _references(value: object) -> set[str]:
    if isinstance(value, dict):
        found = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return found.union(*map(_references, value.values()))
    return set().union(*map(_references, value)) if isinstance(value, list) else set()


def _bounds(limits: dict[str, Any]) -> tuple[list[float], list[float]]:
    """(values inside at the edge, values outside)."""
    step = 1 if all(isinstance(limit, int) for limit in limits.values()) else 0.1
    inside = [limits[key] for key in ("minimum", "maximum") if key in limits]
    outside = [limits["minimum"] - step] if "minimum" in limits else []
    outside += [limits["exclusiveMinimum"]] if "exclusiveMinimum" in limits else []
    outside += [limits["maximum"] + step] if "maximum" in limits else []
    return inside, outside


NUMBERS = [name for name, limits in _LIMITS.items() if limits.keys() & {"minimum", "exclusiveMinimum"}]
IN_CHATS = {"max_completion_tokens", "top_logprobs"}  # numbers that only chats have


@pytest.mark.parametrize("name", NUMBERS)
def test_the_ranges_are_those_that_hold(document: dict[str, Any], name: str):
    component = "ChatBody" if name in IN_CHATS else "CompletionBody"
    options = document["components"]["schemas"][component]["properties"][name]["anyOf"]
    option = next(option for option in options if option["type"] in ("integer", "number"))
    inside, outside = _bounds({key: option[key] for key in _LIMITS[name]})
    client = Client.of(FakeEngine(script=[]))
    for values, status in ((inside, 200), (outside, 400)):
        for value in values:
            fields = {name: value, "echo": True} if name == "max_tokens" else {name: value}
            body = {"prompt": "a", **fields} if component == "CompletionBody" else {"messages": MESSAGES, **fields}
            if name == "top_logprobs":
                body["logprobs"] = True
            url = "/v1/completions" if component == "CompletionBody" else "/v1/chat/completions"
            response = client.post(url, body)
            assert response.status_code == status, (value, response.text)
            if status == 400:
                assert response.json()["error"]["param"] == name


def test_lengths_that_hold():
    client = Client.of(FakeEngine(script=[]))
    for fields in ({"stop": ["a"] * 5}, {"cache_salt": ""}, {"request_id": ""}, {"request_id": "x" * 257}):
        assert client.post("/v1/completions", {"prompt": "a", **fields}).status_code == 400
    for fields in ({"stop": ["a"] * 4}, {"cache_salt": "a"}, {"request_id": "x" * 256}):
        assert client.post("/v1/completions", {"prompt": "a", **fields}).status_code == 200


def test_probes_need_no_key_and_have_no_content(document: dict[str, Any]):
    for path in ("/health", "/ping"):
        operation = document["paths"][path]["get"]
        assert operation["security"] == []
        assert operation["responses"] == {
            "200": {"description": "OK"},
            "503": {"description": "Service Unavailable"},
        }
