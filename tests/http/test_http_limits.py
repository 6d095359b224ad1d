"""Limits of an API key: requests and tokens a minute, requests at once; and the fields that are ignored."""

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest

from pelton.config import EngineConfig
from pelton.errors import RequestError
from pelton.http.app import create_app
from pelton.http.limits import KeyLimits, TokenBucket, show_duration
from pelton.http.metrics import ServerMetrics
from pelton.types import EngineStats

from fakes import URL, Client, FakeEngine, Running, serving, until


@dataclass
class FakeClock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def limited(clock: FakeClock, **settings: Any) -> tuple[FakeEngine, Client]:
    engine = FakeEngine()
    engine.script = engine.ids("hello world")
    engine.config = replace(engine.config, **settings)
    return engine, Client(create_app(engine, clock=clock))


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_a_bucket_refills_evenly_and_holds_no_more_than_a_minute_s_worth(clock: FakeClock):
    bucket = TokenBucket(6, clock)
    bucket.take(6)
    assert (bucket.level, bucket.seconds_until(1)) == (0, 10)
    clock.now += 5
    assert (bucket.level, bucket.seconds_until(1)) == (0.5, 5)
    bucket.take(3)
    assert bucket.level == -2.5
    clock.now += 10000
    assert (bucket.level, bucket.seconds_until(1)) == (6, 0)


@pytest.mark.parametrize("per_minute", [1, 3, 7, 60, 1000])
def test_the_time_to_wait_is_true(clock: FakeClock, per_minute: int):
    limits = KeyLimits(EngineConfig(max_requests_per_minute=per_minute), clock)
    for _ in range(per_minute):
        limits.begin()
    with pytest.raises(RequestError) as raised:
        limits.begin()
    seconds = raised.value.retry_after
    assert seconds == pytest.approx(60 / per_minute)
    clock.now += seconds * 0.99
    with pytest.raises(RequestError):
        limits.begin()
    clock.now += seconds * 0.011
    limits.begin()


def test_requests_a_minute_are_counted_for_each_key(clock: FakeClock):
    _, client = limited(clock, max_requests_per_minute=2, api_key=("a", "b"))
    first, second, third = (client.post(URL, {"prompt": "hi"}, headers=bearer("a")) for _ in range(3))
    assert [first.status_code, second.status_code, third.status_code] == [200, 200, 429]
    assert first.headers["x-ratelimit-limit-requests"] == "2"
    assert first.headers["x-ratelimit-remaining-requests"] == "1"
    assert first.headers["x-ratelimit-reset-requests"] == "30s"
    assert third.headers["x-ratelimit-remaining-requests"] == "0"
    assert third.headers["x-ratelimit-reset-requests"] == "1m0s"
    assert third.headers["retry-after"] == "30"
    assert third.json()["error"]["code"] == 429
    assert third.json()["error"]["type"] == "RateLimitError"
    assert client.post(URL, {"prompt": "hi"}, headers=bearer("b")).status_code == 200
    clock.now += 30
    assert client.post(URL, {"prompt": "hi"}, headers=bearer("a")).status_code == 200


def test_probes_and_lists_are_not_limited_and_refused_bodies_count(clock: FakeClock):
    _, client = limited(clock, max_requests_per_minute=1)
    assert all(client.get(path).status_code == 200 for path in ("/v1/models", "/metrics", "/health") for _ in range(3))
    refused = client.post(URL, {"prompt": ""})
    assert (refused.status_code, refused.headers["x-ratelimit-remaining-requests"]) == (400, "0")
    assert client.post("/tokenize", {"prompt": "hi"}).status_code == 429
    assert 'pelton:error_responses_total{engine="0",model_name="tiny",status="429"} 1.0' in client.get("/metrics").text


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_a_minute_are_those_of_prompt_and_answer(clock: FakeClock, stream: bool):
    _, client = limited(clock, max_tokens_per_minute=60)
    usage = client.post("/v1/completions", {"prompt": "hello", "max_tokens": 4}).json()["usage"]
    left = 60 - usage["total_tokens"]
    answer = client.post(URL, {"prompt": [1] * (left + 20), "max_tokens": 10, "ignore_eos": True, "stream": stream})
    assert answer.status_code == 200  # the rest of the budget is overdrawn
    assert answer.headers["x-ratelimit-remaining-tokens"] == "0"
    refused = client.post(URL, {"prompt": "hi"})
    assert refused.status_code == 429
    assert refused.headers["x-ratelimit-limit-tokens"] == "60"
    assert refused.headers["retry-after"] == "31"  # 30 tokens too many, and one to go on
    clock.now += 31
    assert client.post(URL, {"prompt": "hi"}).status_code == 200


def test_without_limits_there_are_no_headers():
    headers = Client.of(FakeEngine(script=[])).post(URL, {"prompt": "hi"}).headers
    assert not [name for name in headers if name.startswith("x-ratelimit")]


@pytest.mark.parametrize("stream", [False, True])
def test_requests_at_once_are_counted_until_their_answer_has_ended(stream: bool):
    engine = FakeEngine(delay=0.02)
    engine.config = replace(engine.config, max_concurrent_requests=2, api_key=("a", "b"))
    body = {"prompt": "hi", "max_tokens": 2000, "ignore_eos": True, "stream": stream}

    async def scenario(running: Running) -> None:
        async def ask(key: str, **fields: object) -> httpx.Response:
            return await running.client.post(URL, json={**body, **fields}, headers=bearer(key))

        tasks = [asyncio.create_task(ask("a")) for _ in range(2)]
        await until(lambda: engine.num_live == 2)
        refused = await ask("a")
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert (await ask("b", max_tokens=1)).status_code == 200
        tasks[0].cancel()
        await until(lambda: engine.num_live == 1)
        assert (await ask("a", max_tokens=1)).status_code == 200
        tasks[1].cancel()
        await asyncio.wait(tasks)

    serving(engine, scenario)


def test_the_wait_for_a_slot_goes_by_how_long_requests_take(clock: FakeClock):
    limits = KeyLimits(EngineConfig(max_concurrent_requests=2), clock)
    for _ in range(200):
        limits.begin()
        limits.end(20.0)
    limits.begin()
    limits.begin()
    with pytest.raises(RequestError) as raised:
        limits.begin()
    assert raised.value.retry_after == pytest.approx(10)


@pytest.mark.parametrize(("seconds", "text"), [(0, "0ms"), (0.12, "120ms"), (1, "1s"), (7.66, "7.66s"), (360, "6m0s")])
def test_durations_are_written_as_openai_writes_them(seconds: float, text: str):
    assert show_duration(seconds) == text


def test_a_full_queue_says_when_it_will_have_room(monkeypatch: pytest.MonkeyPatch):
    metrics = ServerMetrics()
    assert metrics.seconds_until_ended(5) == 0
    for second in range(10):
        metrics.end_choice("stop", float(second))
    monkeypatch.setattr("pelton.http.metrics.time.perf_counter", lambda: 10.0)
    assert metrics.seconds_until_ended(5) == 5
    monkeypatch.setattr("pelton.http.metrics.time.perf_counter", lambda: 40.0)  # nothing has ended since
    assert metrics.seconds_until_ended(5) == 20


def test_the_estimate_is_the_queue_s_retry_after(monkeypatch: pytest.MonkeyPatch):
    engine = FakeEngine(script=[])
    engine.config = replace(engine.config, max_queue=3)
    client = Client.of(engine)
    asked: list[int] = []
    monkeypatch.setattr(ServerMetrics, "seconds_until_ended", lambda self, count: asked.append(count) or 6.5)
    engine.stats = EngineStats(num_waiting=7)
    response = client.post(URL, {"prompt": "hi"})
    assert (response.status_code, response.headers["retry-after"]) == (429, "7")
    assert asked == [5]


def test_ignored_fields_are_named_in_a_header():
    client = Client.of(FakeEngine(script=[]))
    body = {"prompt": "hi", "temperature": 1, "user": "u", "foo\r\nbar": {"x": [1]}, "ä": 1}
    response = client.post(URL, body)
    assert (response.status_code, response.headers["x-pelton-ignored-fields"]) == (200, "user, foo??bar, ?")
    assert "x-pelton-ignored-fields" not in client.post(URL, {"prompt": "hi", "stop": None}).headers
    many = client.post(URL, {"prompt": "hi", **{f"field_{index}": 1 for index in range(1000)}})
    assert many.headers["x-pelton-ignored-fields"].count(",") == 15


def test_large_bodies_at_once_have_a_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pelton.http.limits.MAX_BODIES_BYTES", 5 * 2**20)
    engine = FakeEngine(delay=0.01)

    async def scenario(running: Running) -> None:
        def ask(num_bytes: int) -> asyncio.Task[httpx.Response]:
            body = {"prompt": "hi", "x": "x" * num_bytes, "max_tokens": 1000, "ignore_eos": True}
            return asyncio.create_task(running.client.post(URL, json=body))

        large = ask(4 * 2**20)
        await until(lambda: engine.num_live == 1)
        assert (await ask(2 * 2**20)).status_code == 429
        small = ask(1000)
        await until(lambda: engine.num_live == 2)
        large.cancel()
        await until(lambda: engine.num_live == 1)
        again = ask(4 * 2**20)
        await until(lambda: engine.num_live == 2)
        for task in (small, again):
            task.cancel()
        await asyncio.wait((small, again, large))

    serving(engine, scenario)
