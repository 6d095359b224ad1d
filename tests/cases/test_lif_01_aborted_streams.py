"""Streams whose clients go, at any moment and in any way, leave nothing behind.

Reported: requests that run on for nobody, pages that stay taken, engines that fall over (vllm#10806, vllm#54947,
vllm#31503, llama.cpp#9928).
"""

import random
import socket
import subprocess
import sys
import time

import httpx
import pytest

from live import metrics, wait_idle

from canary import Canary
from fakes import raw_post

pytestmark = pytest.mark.e2e

NUM_STREAMS = 20
BODY = {"prompt": [40] * 40, "max_tokens": 1800, "ignore_eos": True, "stream": True}
CLIENT = """
import socket, sys, time
connections = []
for _ in range({count}):
    connection = socket.create_connection(("127.0.0.1", {port}))
    connection.sendall({request!r})
    connections.append(connection)
print("sent", flush=True)
time.sleep(60)
"""


def port_of(canary: Canary) -> int:
    return httpx.URL(canary.url).port or 0


def test_lif_01_sockets_closed_before_the_head_in_prefill_and_in_the_stream(canary: Canary):
    wait_idle(canary.client)
    before = metrics(canary.client)
    rng = random.Random(3)
    connections: list[socket.socket] = []
    for index in range(NUM_STREAMS):
        connection = socket.create_connection(("127.0.0.1", port_of(canary)))
        connection.sendall(raw_post({**BODY, "prompt": [40 + index] * rng.randrange(1, 60)}))
        connections.append(connection)
    started = time.monotonic()
    while (
        metrics(canary.client)["pelton:num_requests_running"] + metrics(canary.client)["pelton:num_requests_waiting"]
        < NUM_STREAMS
    ):
        assert time.monotonic() - started < 20
        time.sleep(0.02)
    rng.shuffle(connections)
    for number, connection in enumerate(connections):
        connection.close()
        if number == NUM_STREAMS - 3:
            canary.check()
    wait_idle(canary.client, 5)
    after = metrics(canary.client)
    assert (
        after["pelton:request_success_total abort"] - before.get("pelton:request_success_total abort", 0) == NUM_STREAMS
    )
    assert metrics(canary.client)["pelton:generation_tokens_total"] == after["pelton:generation_tokens_total"]
    canary.check()


def test_lif_01_a_client_that_is_killed(canary: Canary):
    wait_idle(canary.client)
    before = metrics(canary.client)
    source = CLIENT.format(count=NUM_STREAMS, port=port_of(canary), request=raw_post(BODY))
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE) as client:
        assert client.stdout is not None and client.stdout.readline() == b"sent\n"
        started = time.monotonic()
        while metrics(canary.client)["pelton:num_requests_running"] < NUM_STREAMS:
            assert time.monotonic() - started < 20
            time.sleep(0.02)
        client.kill()
    wait_idle(canary.client, 5)
    after = metrics(canary.client)
    assert (
        after["pelton:request_success_total abort"] - before.get("pelton:request_success_total abort", 0) == NUM_STREAMS
    )
    canary.check()
