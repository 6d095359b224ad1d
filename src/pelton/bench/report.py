"""Statistics over the outcomes of a load test, as a table and as JSON."""

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from pelton.bench.client import Outcome


@dataclass(frozen=True, slots=True)
class Distribution:
    """Milliseconds, linear between ranks; all zero where nothing was measured (`count` is 0)."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of_seconds(cls, values: Sequence[float]) -> "Distribution":
        if not values:
            return cls(0, 0.0, 0.0, 0.0, 0.0, 0.0)
        ordered = sorted(1000.0 * value for value in values)
        p50, p90, p99 = (percentile(ordered, q) for q in (50, 90, 99))
        return cls(len(ordered), math.fsum(ordered) / len(ordered), p50, p90, p99, ordered[-1])


def percentile(ordered: Sequence[float], q: float) -> float:
    """The q-th percentile (0 to 100) of ascending values, linear between ranks as numpy's default."""
    rank = q / 100.0 * (len(ordered) - 1)
    below = math.floor(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A load test in numbers. Latencies are milliseconds over successful requests, rates are per second.

    `ttft` is the time to the first token, `tpot` = (latency - ttft) / (output tokens - 1) per request, `itl` the time
    between successive chunks, over all requests. `client_cpu` is the processor time of this load generator as a
    fraction of one core, `client_us_per_chunk` the same per received chunk.
    """

    num_requests: int
    num_failed: int
    failures: dict[str, int]
    duration: float  # seconds from the first request sent to the last answer
    prompt_tokens: int
    output_tokens: int
    requests_per_second: float
    output_tokens_per_second: float
    total_tokens_per_second: float
    ttft: Distribution
    tpot: Distribution
    itl: Distribution
    latency: Distribution
    client_cpu: float
    client_us_per_chunk: float

    def to_json(self) -> dict[str, object]:
        return dataclasses.asdict(self)


def summarize(outcomes: Sequence[Outcome], client_cpu_seconds: float) -> Report:
    """Reduce the outcomes of one load test (at least one)."""
    good = [outcome for outcome in outcomes if outcome.error is None]
    failures = Counter(outcome.error for outcome in outcomes if outcome.error is not None)
    duration = max(outcome.ended for outcome in outcomes) - min(outcome.started for outcome in outcomes)
    per_second = 1.0 / max(duration, 1e-9)
    prompt_tokens = sum(outcome.prompt_tokens for outcome in good)
    output_tokens = sum(outcome.output_tokens for outcome in good)
    num_chunks = sum(outcome.num_chunks for outcome in good)
    return Report(
        num_requests=len(outcomes),
        num_failed=len(outcomes) - len(good),
        failures=dict(failures.most_common()),
        duration=duration,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        requests_per_second=len(good) * per_second,
        output_tokens_per_second=output_tokens * per_second,
        total_tokens_per_second=(prompt_tokens + output_tokens) * per_second,
        ttft=Distribution.of_seconds([outcome.ttft for outcome in good]),
        tpot=Distribution.of_seconds([outcome.tpot for outcome in good if outcome.tpot is not None]),
        itl=Distribution.of_seconds([gap for outcome in good for gap in outcome.gaps]),
        latency=Distribution.of_seconds([outcome.latency for outcome in good]),
        client_cpu=client_cpu_seconds * per_second,
        client_us_per_chunk=1e6 * client_cpu_seconds / num_chunks if num_chunks else 0.0,
    )


def latency_table(report: Report) -> Table:
    """Latencies in milliseconds, one metric a line."""
    table = Table("ms", "mean", "p50", "p90", "p99", "max", title="latency")
    rows = {"time to first token": report.ttft, "time per output token": report.tpot}
    rows |= {"inter-token latency": report.itl, "end to end": report.latency}
    for name, values in rows.items():
        numbers = (values.mean, values.p50, values.p90, values.p99, values.max)
        table.add_row(name, *(f"{number:.2f}" if values.count else "-" for number in numbers))
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def throughput_table(report: Report) -> Table:
    """Counts and rates, and how much of a core the load generator took itself."""
    table = Table("", "value", title="throughput")
    table.add_row("requests", f"{report.num_requests - report.num_failed} of {report.num_requests}")
    table.add_row("duration", f"{report.duration:.2f} s")
    table.add_row("requests per second", f"{report.requests_per_second:.2f}")
    table.add_row("input tokens", str(report.prompt_tokens))
    table.add_row("output tokens", str(report.output_tokens))
    table.add_row("output tokens per second", f"{report.output_tokens_per_second:.1f}")
    table.add_row("total tokens per second", f"{report.total_tokens_per_second:.1f}")
    table.add_row("load generator", f"{report.client_cpu:.1%} of a core, {report.client_us_per_chunk:.0f} us a chunk")
    table.columns[1].justify = "right"
    return table


def failure_lines(report: Report) -> list[str]:
    """One line per reason, most frequent first."""
    return [f"{count} failed: {reason}" for reason, count in report.failures.items()]
