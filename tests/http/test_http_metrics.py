"""/metrics: counts are exact, under both names, and go on over engine restarts."""

import asyncio
from dataclasses import replace

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pelton.http.metrics import Histogram, MonotonicCounters
from pelton.types import EngineStats

from fakes import Client, FakeEngine

URL = "/v1/completions"


def scrape(client: Client) -> dict[str, float]:
    """Values by sample name; `finished_reason` and `status` labels are appended, buckets left out."""
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for sample in family.samples:
            if not sample.name.endswith(("_bucket", "_created")):
                extra = sample.labels.get("finished_reason") or sample.labels.get("status")
                values[f"{sample.name}/{extra}" if extra else sample.name] = sample.value
    return values


@pytest.mark.parametrize("prefix", ["pelton:", "vllm:"])
@pytest.mark.parametrize("size", [1, 3])
def test_counts_after_n_requests_of_g_tokens_are_exact(prefix: str, size: int):
    client = Client.of(FakeEngine(num_tokens_per_delta=size))
    num_requests, num_tokens = 5, 7
    for index in range(num_requests):
        body = {"prompt": "hello", "max_tokens": num_tokens, "stream": index % 2 == 0}
        assert client.post(URL, body).status_code == 200
    values = scrape(client)
    assert values[prefix + "time_to_first_token_seconds_count"] == num_requests
    assert values[prefix + "inter_token_latency_seconds_count"] == num_requests * (num_tokens - 1)
    assert values[prefix + "e2e_request_latency_seconds_count"] == num_requests
    assert values[prefix + "prompt_tokens_total"] == num_requests * 1
    assert values[prefix + "generation_tokens_total"] == num_requests * num_tokens
    assert values[prefix + "request_success_total/length"] == num_requests
    assert values[prefix + "request_success_total/stop"] == 0
    assert values[prefix + "request_success_total/abort"] == 0


def test_token_counters_equal_the_usage_of_a_mix():
    client = Client.of(FakeEngine())
    usages = [
        client.post(URL, {"prompt": ["hello", "a b c"], "n": 3, "max_tokens": 5}).json()["usage"],
        client.events(URL, {"prompt": "xyz", "max_tokens": 4, "stream_options": {"include_usage": True}})[-1]["usage"],
    ]
    client.post(URL, {"prompt": ""})
    client.post(URL, {"prompt": "a", "model": "other"})
    values = scrape(client)
    assert values["pelton:prompt_tokens_total"] == sum(usage["prompt_tokens"] for usage in usages)
    assert values["pelton:generation_tokens_total"] == sum(usage["completion_tokens"] for usage in usages)
    assert values["pelton:time_to_first_token_seconds_count"] == 7
    assert values["pelton:error_responses_total/400"] == 1
    assert values["pelton:error_responses_total/404"] == 1


def test_a_client_that_goes_counts_as_aborted():
    engine = FakeEngine(delay=0.01)
    client = Client.of(engine)

    async def start_and_leave() -> None:
        transport = httpx.ASGITransport(app=client.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            post = asyncio.create_task(http.post(URL, json={"prompt": "hi", "max_tokens": 500}))
            while not engine.num_live:
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.05)
            post.cancel()
            await asyncio.gather(post, return_exceptions=True)

    asyncio.run(start_and_leave())
    values = scrape(client)
    assert values["pelton:request_success_total/abort"] == 1
    assert values["pelton:aborted_generation_tokens_total"] == values["pelton:generation_tokens_total"] > 0
    assert values["pelton:e2e_request_latency_seconds_count"] == 0


def test_gauges_and_counters_of_the_engine_are_served():
    engine = FakeEngine()
    engine.stats = EngineStats(
        num_running=3,
        num_waiting=2,
        num_pages=100,
        num_used_pages=25,
        page_size=16,
        num_used_slots=300,
        num_preemptions=4,
        prefix_cache_queries=50,
        prefix_cache_hits=20,
    )
    values = scrape(Client.of(engine))
    assert values["vllm:num_requests_running"] == 3
    assert values["vllm:num_requests_waiting"] == 2
    assert values["vllm:kv_cache_usage_perc"] == 0.25
    assert values["pelton:kv_waste"] == 0.25
    assert values["vllm:num_preemptions_total"] == 4
    assert values["vllm:prefix_cache_queries_total"] == 50
    assert values["vllm:prefix_cache_hits_total"] == 20


def test_vllm_names_can_be_switched_off():
    engine = FakeEngine()
    engine.config = replace(engine.config, vllm_metrics=False)
    text = Client.of(engine).get("/metrics").text
    assert "pelton:num_requests_running" in text
    assert "vllm:" not in text


def test_buckets_start_at_half_a_millisecond():
    text = Client.of(FakeEngine()).get("/metrics").text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    for name in ("pelton:time_to_first_token_seconds", "vllm:inter_token_latency_seconds"):
        bounds = [float(s.labels["le"]) for s in families[name].samples if s.name.endswith("_bucket")]
        assert bounds[0] == 0.0005
        assert sum(bound < 0.01 for bound in bounds) >= 5


def test_a_bucket_holds_what_is_at_most_its_bound():
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 3.0):
        histogram.observe(value)
    histogram.observe(0.25, times=2)
    assert histogram.cumulative() == ([("1.0", 4), ("2.0", 6), ("+Inf", 7)], 8.5)


def test_counters_go_on_when_the_engine_starts_again():
    counters = MonotonicCounters()
    steps = [EngineStats(num_steps=n, num_preemptions=p) for n, p in ((10, 3), (20, 5), (2, 0), (4, 1), (1, 0))]
    seen = [counters.update(stats) for stats in steps]
    assert [values["num_steps"] for values in seen] == [10, 20, 22, 24, 25]
    assert [values["num_preemptions"] for values in seen] == [3, 5, 5, 6, 6]
