"""Two hundred clients that hang up leave a server that answers at once, gauges at 0 and every page free."""

import socket
import time

import httpx
import pytest

from live import complete, metrics, wait_idle

from canary import Canary
from fakes import raw_post

pytestmark = pytest.mark.e2e


def test_api_27_two_hundred_hang_ups(canary: Canary):
    wait_idle(canary.client)
    request = raw_post({"prompt": [40, 41, 42], "max_tokens": 1500, "ignore_eos": True, "stream": True})
    port = httpx.URL(canary.url).port or 0
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(200)]
    for connection in connections:
        connection.sendall(request)
    time.sleep(0.3)
    for connection in connections:
        connection.close()
    started = time.monotonic()
    assert complete(canary, prompt="x", max_tokens=1)["usage"]["completion_tokens"] == 1
    assert time.monotonic() - started < 5
    wait_idle(canary.client, 10)
    assert metrics(canary.client)["pelton:kv_cache_usage_perc"] == 0
    canary.check()
