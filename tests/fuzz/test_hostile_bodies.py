"""Malformed, huge and strange bodies at every endpoint of a real server: each is refused, and the canary holds."""

import contextlib
import json
from http.client import HTTPConnection
from typing import Any

import pytest

from canary import Canary

pytestmark = pytest.mark.e2e

JSON = "application/json"
REFUSED: dict[str, tuple[bytes, str | None]] = {
    "empty": (b"", JSON),
    "truncated": (b'{"prompt": "hi", "messages": [{"role": ', JSON),
    "an array": (b'["hi"]', JSON),
    "a string": (b'"hi"', JSON),
    "null": (b"null", JSON),
    "200 deep": (b'{"x": ' + b"[" * 200 + b"]" * 200 + b"}", JSON),
    "a million deep": (b'{"x": ' + b"[" * 10**6, JSON),
    "without a type": (b'{"prompt": "hi"}', None),
    "text": (b'{"prompt": "hi"}', "text/plain"),
    "a form": (b"prompt=hi", "application/x-www-form-urlencoded"),
    "GBK": ('{"prompt": "你好", "input": "你好"}'.encode("gbk"), JSON),
    "a raw NUL": (b'{"prompt": "a\x00b"}', JSON),
    "an unpaired surrogate": (b'{"prompt": "\\ud83d", "input": "\\ud83d", "messages": [{"role": "\\ud83d"}]}', JSON),
    "other types": (
        b'{"prompt": {}, "messages": 1, "input": 1.5, "query": [], "documents": 1, "tokens": "1", "text_1": 1}',
        JSON,
    ),
    "50 MB": (b'{"prompt": "' + b"x" * 50_000_000 + b'"}', JSON),
}
# Whether these are refused is up to the endpoint.
STRANGE: dict[str, bytes] = {
    "numbers as strings": b'{"prompt": "a", "messages": [{"role": "user", "content": "a"}], "input": "a", '
    b'"tokens": ["1"], "max_tokens": "1", "temperature": "1", "add_special_tokens": "1"}',
    "the same key twice": b'{"prompt": "a", "prompt": 1, "input": "a", "input": 1, "messages": [], "messages": 1}',
    "an unknown model": b'{"model": "../../etc/passwd", "prompt": "a", "input": "a"}',
    "long keys": json.dumps({"x" * 100_000: 1, "prompt": "a", "input": "a"}).encode(),
    "100,000 keys": json.dumps({f"key_{index}": index for index in range(100_000)}).encode(),
    "control characters": json.dumps({"prompt": "".join(map(chr, range(32))), "max_tokens": 1}).encode(),
    "a schema at the wrong level": json.dumps(
        {
            "prompt": "a",
            "messages": [{"role": "user", "content": "a"}],
            "response_format": {"type": "json_schema", "schema": {"type": "object"}},
            "max_tokens": 1,
        }
    ).encode(),
}


def post(connection: HTTPConnection, url: str, body: bytes, content_type: str | None) -> tuple[int, Any]:
    headers = {} if content_type is None else {"Content-Type": content_type}
    connection.request("POST", url, body, headers)
    response = connection.getresponse()
    content = response.read()
    assert content, "an empty reply"
    return response.status, json.loads(content)


def test_api_02_bodies_that_no_endpoint_can_read_are_refused_and_the_canary_holds(canary: Canary):
    paths: dict[str, Any] = canary.client.get("/openapi.json").json()["paths"]
    urls = [url for url, operations in paths.items() if "requestBody" in operations.get("post", {})]
    assert len(urls) >= 5
    memory = 0
    for _ in range(2):
        for url in urls:
            connection = HTTPConnection(canary.url.removeprefix("http://"), timeout=60)
            with contextlib.closing(connection):
                for name, (body, content_type) in REFUSED.items():
                    status, answer = post(connection, url, body, content_type)
                    assert status in (400, 404, 413), f"{url}, {name}: {answer}"
                    assert answer["error"]["message"], f"{url}, {name}"
                for name, body in STRANGE.items():
                    status, answer = post(connection, url, body, JSON)
                    assert status < 500, f"{url}, {name}: {answer}"
            canary.check()
        memory = memory or canary.memory_bytes()
    assert canary.memory_bytes() - memory < 64 * 2**20
    assert canary.gauge("pelton:num_requests_running") == 0
