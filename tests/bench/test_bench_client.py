"""One streamed request: what is timed, what counts as a failure, how connections are used."""

import asyncio

import pytest

from bench.stub_server import StubServer
from pelton.bench.client import Endpoint, Outcome, error_message, send_request
from pelton.bench.connection import Address, HttpClient
from pelton.bench.workload import Prompt

SETTINGS: dict[str, object] = {"model": "stub", "temperature": 0.0}


async def request(server: StubServer, endpoint: Endpoint = "completions", **options) -> Outcome:
    client = HttpClient(Address.parse(server.url), **options)
    try:
        return await send_request(client, endpoint, SETTINGS, Prompt("hello", 5))
    finally:
        client.close()


def run_against(server: StubServer, endpoint: Endpoint = "completions", **options) -> Outcome:
    async def main() -> Outcome:
        async with server.running():
            return await request(server, endpoint, **options)

    return asyncio.run(main())


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
@pytest.mark.parametrize("chunked", [True, False])
def test_times_match_the_script(endpoint, chunked):
    outcome = run_against(StubServer(delays=(0.15, 0.05, 0.1), chunked=chunked), endpoint)
    assert outcome.error is None
    assert 0.15 <= outcome.ttft < 0.2  # the role chunk of a chat, sent at once, is no token
    assert len(outcome.gaps) == 2
    assert outcome.gaps[0] == pytest.approx(0.05, abs=0.03)
    assert outcome.gaps[1] == pytest.approx(0.1, abs=0.03)
    assert outcome.latency == pytest.approx(0.3, abs=0.05)


def test_token_counts_come_from_usage_not_from_chunks():
    outcome = run_against(StubServer(delays=(0.0, 0.02)))
    assert (outcome.prompt_tokens, outcome.output_tokens) == (7, 4)
    assert outcome.tpot == pytest.approx((outcome.latency - outcome.ttft) / 3)


def test_the_request_is_a_stream_with_usage():
    server = StubServer()
    run_against(server, api_key="secret")
    [(path, body)] = server.requests
    assert path == "/v1/completions"
    assert body == {
        "model": "stub",
        "temperature": 0.0,
        "prompt": "hello",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 5,
    }
    assert "Authorization: Bearer secret\r\n" in server.headers[0]


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        (StubServer(status=429), "HTTP 429: queue is full"),
        (StubServer(status=500, body_of_error="oops"), "HTTP 500: oops"),
        (StubServer(usage=False), "the server sent no usage, though stream_options asked for it"),
        (StubServer(final_event='{"choices": []}'), "the stream ended without a finish_reason"),
        (StubServer(final_event='{"error": {"message": "engine died"}}'), "engine died"),
    ],
)
def test_failures_have_reasons(server, reason):
    assert run_against(server).error == reason


def test_no_server_is_a_failure_not_an_exception():
    server = StubServer(port=1)
    assert "ConnectionRefusedError" in (asyncio.run(request(server)).error or "")


def test_a_connection_cut_in_the_middle_is_a_failure():
    class Cutting(StubServer):
        async def _stream(self, chat, body, writer):
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            writer.close()

    assert "in the middle of a response" in (run_against(Cutting()).error or "")


def test_connections_are_kept_and_closed_ones_replaced():
    async def send_three(server: StubServer) -> list[Outcome]:
        async with server.running():
            client = HttpClient(Address.parse(server.url))
            outcomes: list[Outcome] = []
            for _ in range(3):
                outcomes.append(await send_request(client, "completions", SETTINGS, Prompt("hello", 5)))
                await asyncio.sleep(0.01)
            client.close()
            return outcomes

    keeping, closing = StubServer(), StubServer(close_after_answer=True)
    for server in (keeping, closing):
        assert [outcome.error for outcome in asyncio.run(send_three(server))] == [None] * 3
    assert keeping.num_connections == 1
    assert closing.num_connections == 3


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8000", Address("127.0.0.1", 8000, False, "")),
        ("localhost:9", Address("localhost", 9, False, "")),
        ("https://api.example.com/v1/", Address("api.example.com", 443, True, "")),
        ("http://host/llm/v1", Address("host", 80, False, "/llm")),
    ],
)
def test_base_urls(url, address):
    assert Address.parse(url) == address


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://host:port"])
def test_bad_base_urls_are_refused(url):
    with pytest.raises(ValueError, match="base URL"):
        Address.parse(url)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": {"message": "a"}}, "a"),
        ({"detail": "b"}, "b"),
        ("c", "c"),
        ({"x": 1}, '{"x":1}'),
        (None, "null"),
    ],
)
def test_error_message_finds_the_text(body, message):
    assert error_message(body) == message
