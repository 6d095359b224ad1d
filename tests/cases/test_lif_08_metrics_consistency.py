"""After a known mix of requests the metrics add up to what the clients saw.

Reported: token counters that miss streams, n or aborted work, gauges that stay up, latencies unlike the client's
(vllm#31503, vllm#8625, vllm#22454, defilantech/LLMKube#482).
"""

import asyncio
import statistics
import time
from typing import Any

import httpx
import pytest

from live import complete, metrics, metrics_of, wait_idle
from pelton.http.app import create_app

from canary import Canary
from fakes import URL, FakeEngine, Running, parse_events, serving, until
from scripted import scripted_engine

SENTENCE = "The lighthouse stood at the end of a long spit of sand, and in winter the sea came over the road. "
STREAM = {"stream": True, "stream_options": {"include_usage": True}}


def difference(before: dict[str, float], after: dict[str, float], name: str) -> float:
    return after[f"pelton:{name}"] - before[f"pelton:{name}"]


@pytest.mark.e2e
def test_lif_08_counters_equal_the_sum_of_the_answers(canary: Canary):
    wait_idle(canary.client)
    before = metrics(canary.client)
    usages: list[dict[str, Any]] = [
        complete(canary, prompt=SENTENCE, max_tokens=5, ignore_eos=True)["usage"],
        complete(canary, prompt=SENTENCE * 8, n=3, temperature=0.9, max_tokens=4, ignore_eos=True)["usage"],
        complete(canary, prompt=SENTENCE * 8, max_tokens=2, ignore_eos=True)["usage"],  # cached
        complete(canary, prompt=[SENTENCE, "Hello"], max_tokens=3, ignore_eos=True)["usage"],
    ]
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 6, "ignore_eos": True, **STREAM}
    usages.append(parse_events(canary.client.post("/v1/chat/completions", json=chat))[-1]["usage"])
    for bad in ({"prompt": ""}, {"prompt": "x", "temperature": 9}):
        assert canary.client.post(URL, json=bad).status_code == 400
    num_aborted_tokens = abort_one(canary)
    wait_idle(canary.client)
    after = metrics(canary.client)

    assert usages[2]["prompt_tokens_details"]["cached_tokens"] > 0
    # The aborted request's prompt was computed as well.
    prompt_tokens = sum(usage["prompt_tokens"] for usage in usages) + 2
    completion_tokens = sum(usage["completion_tokens"] for usage in usages)
    aborted_tokens = difference(before, after, "aborted_generation_tokens_total")
    assert aborted_tokens >= num_aborted_tokens
    assert difference(before, after, "prompt_tokens_total") == prompt_tokens
    assert difference(before, after, "generation_tokens_total") == completion_tokens + aborted_tokens
    # By choice: 1 + 3 + 1 + 2 + 1 ended by length, one was aborted, two bodies were refused.
    assert difference(before, after, "request_success_total length") == 8
    assert difference(before, after, "request_success_total abort") == 1
    assert difference(before, after, "request_success_total stop") == 0
    assert after["pelton:error_responses_total 400"] - before.get("pelton:error_responses_total 400", 0) == 2
    assert difference(before, after, "request_generation_tokens_count") == 8
    assert difference(before, after, "request_generation_tokens_sum") == completion_tokens
    assert difference(before, after, "e2e_request_latency_seconds_count") == 8
    assert difference(before, after, "time_to_first_token_seconds_count") == 9
    for name in ("prompt_tokens_total", "generation_tokens_total", "request_success_total length"):
        assert after[f"vllm:{name}"] == after[f"pelton:{name}"]


def abort_one(canary: Canary) -> int:
    """Hang up after a few events; how many tokens came."""
    body = {"prompt": [40, 41], "max_tokens": 1000, "ignore_eos": True, "stream": True}
    num_events = 0
    with canary.client.stream("POST", URL, json=body) as response:
        for line in response.iter_lines():
            num_events += line.startswith("data: ")
            if num_events == 4:
                break
    return num_events


def test_lif_08_time_to_first_token_is_the_client_s():
    """Steps of 0.4 s, so that a busy test machine does not decide."""
    engine = FakeEngine(script=[65], delay=0.4)
    times: list[float] = []

    async def one(client: httpx.AsyncClient) -> None:
        started = time.perf_counter()
        async with client.stream("POST", URL, json={"prompt": "x", **STREAM}) as response:
            await anext(response.aiter_bytes())
            times.append(time.perf_counter() - started)

    async def scenario(running: Running) -> None:
        for _ in range(3):
            await one(running.client)
        found = metrics_of(await running.client.get("/metrics"))
        mean = found["pelton:time_to_first_token_seconds_sum"] / found["pelton:time_to_first_token_seconds_count"]
        assert found["pelton:time_to_first_token_seconds_count"] == 3
        assert mean == pytest.approx(statistics.mean(times), rel=0.1)

    assert serving(engine, scenario) == 0


def test_lif_08_the_queue_is_seen_while_the_batch_is_full():
    """What an autoscaler goes by: two run, the others wait, then nobody does."""
    fake = FakeEngine()

    async def main() -> None:
        engine, _ = await scripted_engine(
            fake.tokenizer,
            fake.info,
            lambda prompt: [65],
            before_step=lambda plan: time.sleep(0.01),
            max_num_seqs=2,
        )
        transport = httpx.ASGITransport(app=create_app(engine))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            body = {"prompt": "x", "max_tokens": 30}
            tasks = [asyncio.create_task(client.post(URL, json=body)) for _ in range(6)]
            await until(lambda: engine.stats.num_running == 2)
            seen = metrics_of(await client.get("/metrics"))
            assert (seen["pelton:num_requests_running"], seen["pelton:num_requests_waiting"]) == (2, 4)
            assert {(await task).status_code for task in tasks} == {200}
            await until(lambda: engine.stats.num_running == 0)
            seen = metrics_of(await client.get("/metrics"))
            assert seen["pelton:num_requests_waiting"] == seen["pelton:kv_cache_usage_perc"] == 0
        await engine.stop()

    asyncio.run(main())
