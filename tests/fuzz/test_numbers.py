"""Every number that the OpenAPI document knows, at every endpoint, with every value that numbers are broken by."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

import pytest

from canary import Canary

pytestmark = pytest.mark.e2e

# JSON text: some of it is none, and some of it no float can hold.
VALUES = (
    *("0", "-0.0", "-1", "1.5", "1e-320", "1e308", str(2**31 - 1), str(2**31), str(2**63), str(-(2**63) - 1)),
    *("NaN", "Infinity", "-Infinity", "1e400", "9" * 5000, '"1"', "true", "[0]", '{"0": 1e999}'),
)
# Fields that a body does not have are ignored: one body is valid at every endpoint.
VALID: dict[str, Any] = {
    "prompt": "1 2 3",
    "messages": [{"role": "user", "content": "hi"}],
    "input": "hi",
    "query": "a",
    "documents": ["b"],
    "text_1": "a",
    "text_2": "b",
    "tokens": [1],
    "max_tokens": 1,
    "max_output_tokens": 16,
    "store": False,
}
MAX_GROWTH_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Number:
    """A number in a body: the names that lead to it; 0 is an item of a list, "*" any key of an object."""

    url: str
    path: tuple[str | int, ...]

    def bodies(self) -> Iterator[bytes]:
        for value in VALUES:
            nested: object = "@"
            for step in reversed(self.path[1:]):
                nested = [nested] if step == 0 else {"1" if step == "*" else step: nested}
            yield json.dumps({**VALID, str(self.path[0]): nested}).replace('"@"', value).encode()


def numbers(document: dict[str, Any]) -> list[Number]:
    """All numbers of all bodies, each place once."""
    found: dict[Number, None] = {}
    for url, operations in document["paths"].items():
        if "{" not in url and "requestBody" in operations.get("post", {}):
            schema = operations["post"]["requestBody"]["content"]["application/json"]["schema"]
            found |= {Number(url, path): None for path in _paths(schema, document["components"]["schemas"], ())}
    return list(found)


def _paths(
    schema: dict[str, Any], components: dict[str, Any], path: tuple[str | int, ...]
) -> Iterator[tuple[str | int, ...]]:
    if len(path) > 4:
        return
    if "$ref" in schema:
        schema = components[schema["$ref"].rpartition("/")[2]]
    if path and schema.get("type") in ("integer", "number"):
        yield path
    for key in ("anyOf", "oneOf"):
        for option in schema.get(key, ()):
            yield from _paths(option, components, path)
    for name, field in schema.get("properties", {}).items():
        yield from _paths(field, components, (*path, name))
    if isinstance(schema.get("items"), dict):
        yield from _paths(schema["items"], components, (*path, 0))
    if isinstance(schema.get("additionalProperties"), dict):
        yield from _paths(schema["additionalProperties"], components, (*path, "*"))


def test_no_number_is_a_5xx_and_the_canary_and_its_memory_hold(canary: Canary):
    places = numbers(canary.client.get("/openapi.json").json())
    assert len(places) > 40
    assert {"temperature", "max_tokens", "seed", "logit_bias"} <= {place.path[0] for place in places}
    for place in places[::8]:  # so that what is made on first use is there
        _send_all(canary, place)
    memory = canary.memory_bytes()
    statuses: set[int] = set()
    for place in places:
        statuses |= _send_all(canary, place)
        canary.check()
    assert {200, 400} <= statuses
    assert canary.memory_bytes() - memory < MAX_GROWTH_BYTES
    assert canary.gauge("pelton:num_requests_running") == 0
    assert canary.gauge("pelton:kv_cache_usage_perc") == 0


def _send_all(canary: Canary, place: Number) -> set[int]:
    connection = HTTPConnection(canary.url.removeprefix("http://"), timeout=60)  # several times faster than httpx
    with contextlib.closing(connection):
        return {_send(connection, place.url, body) for body in place.bodies()}


def _send(connection: HTTPConnection, url: str, body: bytes) -> int:
    connection.request("POST", url, body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    content = response.read()
    assert response.status < 500, f"{url} {body[:300]!r}: {content[:1000]!r}"
    if response.status >= 400:
        assert json.loads(content)["error"]["message"], f"{url} {body[:300]!r}"
    else:
        assert b"NaN" not in content and b"Infinity" not in content
    return response.status
