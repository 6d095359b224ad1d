"""After n requests of g tokens the metrics are exact: counts of latencies, token totals, ends by reason."""

import asyncio

import pytest

from live import metrics_of

from fakes import URL, FakeEngine, Running, serving, until


@pytest.mark.parametrize("prefix", ["pelton", "vllm"])
def test_api_30_counts_are_exact_and_aborts_counted(prefix: str):
    num_requests, num_tokens = 5, 7
    engine = FakeEngine(delay=0.001)
    body = {"prompt": [65, 66, 67], "max_tokens": num_tokens, "ignore_eos": True}

    async def scenario(running: Running) -> None:
        for _ in range(num_requests):
            assert (await running.client.post(URL, json=body)).status_code == 200
        found = metrics_of(await running.client.get("/metrics"))
        assert found[f"{prefix}:time_to_first_token_seconds_count"] == num_requests
        assert found[f"{prefix}:inter_token_latency_seconds_count"] == num_requests * (num_tokens - 1)
        assert found[f"{prefix}:prompt_tokens_total"] == num_requests * 3
        assert found[f"{prefix}:generation_tokens_total"] == num_requests * num_tokens
        assert found[f"{prefix}:request_success_total length"] == num_requests
        assert found[f"{prefix}:request_success_total stop"] == 0
        task = asyncio.create_task(running.client.post(URL, json={**body, "max_tokens": 2000}))
        await until(lambda: engine.num_live == 1)
        task.cancel()
        await until(lambda: engine.num_live == 0)
        found = metrics_of(await running.client.get("/metrics"))
        assert found[f"{prefix}:request_success_total abort"] == 1
        assert found[f"{prefix}:request_success_total length"] == num_requests

    assert serving(engine, scenario) == 0
