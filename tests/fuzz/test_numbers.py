"""Every number that the OpenAPI document knows, at every endpoint, with every value that numbers are broken by."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from canary import Canary

pytestmark = pytest.mark.e2e

# JSON text: some of it is none, and some of it no float can hold.
VALUES = (
    *("0", "-0.0", "1", "-1", "1.5", "1e-320", "21", "129"),
    *(str(sign * 2**bits + step) for sign in (1, -1) for bits in (31, 32, 53, 63, 64) for step in (-1, 0)),
    *("NaN", "Infinity", "-Infinity", "1e308", "1e400", "-1e400", "9" * 5000),
    *('"1"', '"NaN"', "true", "[]", "{}", "[0]", '{"0": 1e999}'),
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
    "max_tokens": 2,
    "max_output_tokens": 16,
    "stream": False,
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
    statuses: set[int] = set()
    memory: list[int] = []
    for _ in range(2):
        for place in places:
            for body in place.bodies():
                statuses.add(_send(canary, place.url, body))
            canary.check()
        memory.append(canary.memory_bytes())
    assert {200, 400} <= statuses
    assert memory[1] - memory[0] < MAX_GROWTH_BYTES
    assert canary.gauge("pelton:num_requests_running") == 0
    assert canary.gauge("pelton:kv_cache_usage_perc") == 0


def _send(canary: Canary, url: str, body: bytes) -> int:
    response = canary.client.post(url, content=body, headers={"Content-Type": "application/json"})
    assert response.status_code < 500, f"{url} {body[:300]!r}: {response.text}"
    if response.status_code >= 400:
        assert response.json()["error"]["message"], f"{url} {body[:300]!r}"
    else:
        assert b"NaN" not in response.content and b"Infinity" not in response.content
    return response.status_code
