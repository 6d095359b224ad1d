"""Statistics of a load test against numpy and by hand."""

import io
import json

import numpy as np
import pytest
from rich.console import Console

from pelton.bench.client import Outcome
from pelton.bench.report import Distribution, failure_lines, latency_table, percentile, summarize, throughput_table


@pytest.mark.parametrize("size", [1, 2, 3, 10, 997])
def test_percentiles_are_numpys(size):
    values = sorted(np.random.default_rng(size).gamma(2.0, size=size).tolist())
    for q in (0, 1, 50, 90, 99, 100):
        assert percentile(values, q) == pytest.approx(np.percentile(values, q))


def test_distribution_is_in_milliseconds_and_needs_no_order():
    values = np.random.default_rng(0).exponential(size=501)
    result = Distribution.of_seconds(values.tolist())
    assert result.count == 501
    assert result.mean == pytest.approx(1000 * values.mean())
    assert (result.p50, result.p90, result.p99) == pytest.approx(tuple(1000 * np.percentile(values, [50, 90, 99])))
    assert result.max == pytest.approx(1000 * values.max())


OUTCOMES = [
    Outcome(10.0, 12.0, ttft=0.5, gaps=(0.5, 1.0), prompt_tokens=100, output_tokens=4, num_chunks=3),
    Outcome(11.0, 14.0, ttft=1.0, gaps=(2.0,), prompt_tokens=50, output_tokens=2, num_chunks=2),
    Outcome(11.0, 11.5, ttft=0.5, prompt_tokens=10, output_tokens=1, num_chunks=1),
    Outcome(12.0, 12.1, error="HTTP 429: full"),
    Outcome(12.0, 12.1, error="HTTP 429: full"),
    Outcome(12.0, 12.1, error="gone"),
]


def test_summary_by_hand():
    report = summarize(OUTCOMES, client_cpu_seconds=0.4)
    assert (report.num_requests, report.num_failed) == (6, 3)
    assert report.failures == {"HTTP 429: full": 2, "gone": 1}
    assert report.duration == 4.0
    assert (report.prompt_tokens, report.output_tokens) == (160, 7)
    assert report.requests_per_second == 3 / 4
    assert report.output_tokens_per_second == 7 / 4
    assert report.total_tokens_per_second == 167 / 4
    assert report.ttft.mean == pytest.approx(2000 / 3)
    assert report.tpot.count == 2  # the single token has none
    assert report.tpot.mean == pytest.approx((500 + 2000) / 2)
    assert report.itl.count == 3
    assert report.latency.max == 3000
    assert report.client_cpu == pytest.approx(0.1)
    assert report.client_us_per_chunk == pytest.approx(0.4e6 / 6)


def test_json_round_trip_and_nothing_but_failures():
    report = summarize(OUTCOMES[3:], 0.0)
    parsed = json.loads(json.dumps(report.to_json()))
    assert parsed["num_failed"] == 3
    assert parsed["ttft"] == {"count": 0, "mean": 0.0, "p50": 0.0, "p90": 0.0, "p99": 0.0, "max": 0.0}


def test_tables_show_the_numbers():
    report = summarize(OUTCOMES, 0.4)
    output = io.StringIO()
    Console(file=output, width=120).print(throughput_table(report), latency_table(report))
    text = output.getvalue()
    for expected in ("3 of 6", "666.67", "1250.00", "41.8", "10.0% of a core"):
        assert expected in text
    assert failure_lines(report) == ["2 failed: HTTP 429: full", "1 failed: gone"]
