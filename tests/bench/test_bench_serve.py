"""The load generator against a scripted server."""

import asyncio

import pytest

from bench.stub_server import StubServer
from pelton.bench.client import Outcome
from pelton.bench.report import Report
from pelton.bench.serve import ServeBenchmark, run_benchmark, run_open_loop
from pelton.bench.workload import Prompt


def run_against(server: StubServer, on_progress=None, **settings) -> Report:
    async def main() -> Report:
        async with server.running():
            return await run_benchmark(ServeBenchmark(base_url=server.url, **settings), on_progress)

    return asyncio.run(main())


def generations(server: StubServer) -> list[dict]:
    return [body for path, body in server.requests if path.startswith("/v1/") and body]


def test_closed_loop_keeps_the_concurrency():
    server = StubServer(delays=(0.01, 0.01))
    seen: list[Outcome] = []
    report = run_against(server, seen.append, num_prompts=20, concurrency=4, num_warmup=0, input_len=8)
    assert (report.num_requests, report.num_failed) == (20, 0)
    assert server.max_open == 4
    assert len(seen) == 20
    assert report.output_tokens == 80
    assert report.itl.count == 20


def test_open_loop_sends_on_time_whatever_is_in_flight():
    server = StubServer(delays=(0.3,))
    report = run_against(server, num_prompts=10, request_rate=100.0, num_warmup=0, input_len=8)
    assert report.num_failed == 0
    assert server.max_open >= 8
    assert report.duration < 1.0


def test_open_loop_latency_counts_from_the_due_time():
    started: list[float | None] = []

    async def send(prompt: Prompt, begun: float | None) -> Outcome:
        started.append(begun)
        return Outcome(begun or 0.0, 0.0)

    asyncio.run(run_open_loop(send, [Prompt("a", 1)] * 3, [0.0, 0.01, 0.03], lambda _: None))
    first = started[0]
    assert first is not None
    assert started == pytest.approx([first, first + 0.01, first + 0.03])


def test_prompts_are_distinct_also_from_the_warmup():
    server = StubServer()
    run_against(server, num_prompts=5, concurrency=1, num_warmup=3, input_len=8)
    prompts = [body["prompt"] for body in generations(server)]
    assert len(set(prompts)) == len(prompts) == 8


def test_the_servers_tokenizer_makes_the_length_exact():
    server = StubServer(tokenize=True)
    run_against(server, num_prompts=4, concurrency=1, num_warmup=0, input_len=16)
    lengths = [1 + sum(2 if len(word) >= 6 else 1 for word in body["prompt"].split()) for body in generations(server)]
    assert lengths == [16] * 4


def test_defaults_of_a_random_workload():
    server = StubServer()
    run_against(server, num_prompts=1, concurrency=1, num_warmup=0, output_len=77)
    [body] = generations(server)
    assert (body["model"], body["temperature"], body["max_tokens"], body["ignore_eos"]) == ("stub", 0.0, 77, True)
    assert len(body["prompt"].split()) == 256


def test_given_prompts_are_repeated_and_end_where_they_want(tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("one\ntwo\n")
    server = StubServer()
    run_against(server, prompts=file, num_prompts=3, concurrency=1, num_warmup=0, endpoint="chat")
    bodies = generations(server)
    assert [body["messages"][0]["content"] for body in bodies] == ["one", "two", "one"]
    assert "ignore_eos" not in bodies[0]


def test_failures_are_counted_by_reason():
    report = run_against(StubServer(status=429), num_prompts=3, concurrency=2, num_warmup=0, input_len=4)
    assert report.num_failed == 3
    assert report.failures == {"HTTP 429: queue is full": 3}


def test_a_hanging_request_times_out():
    report = run_against(StubServer(delays=(5.0,)), num_prompts=1, concurrency=1, num_warmup=0, timeout=0.1)
    assert report.failures == {"no end within 0.1 s": 1}


def test_a_failing_warmup_stops_at_once():
    with pytest.raises(ValueError, match="warm-up request failed: HTTP 401"):
        run_against(StubServer(status=401), num_prompts=3, concurrency=1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "one of --concurrency and --request-rate"),
        ({"concurrency": 1, "request_rate": 1.0}, "one of --concurrency and --request-rate"),
        ({"concurrency": 0}, "--concurrency must be at least 1"),
        ({"request_rate": 0.0}, "--request-rate must be above 0"),
        ({"concurrency": 1, "burstiness": 2.0}, "--burstiness needs --request-rate"),
        ({"concurrency": 1, "num_warmup": -1}, "--warmup must be at least 0"),
    ],
)
def test_contradicting_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        ServeBenchmark(**settings)
