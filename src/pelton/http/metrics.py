"""Prometheus metrics: latencies and tokens as the server sees them, gauges and counters of the engine."""

import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from pelton.engine.protocol import EngineClient
from pelton.types import EngineStats, FinishReason

CONTENT_TYPE = CONTENT_TYPE_LATEST

# Seconds. One token of a small model takes under a millisecond on a GPU, a long prefill on a CPU minutes.
_LATENCY_BUCKETS = (
    *(0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3),
    *(0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0),
)
_NUM_ENDS = 64
_TOKEN_BUCKETS = tuple(float(2**exponent) for exponent in range(21))


class Histogram:
    """Counts by bucket. Lighter than the client library's: observing is in the path of every token."""

    def __init__(self, buckets: tuple[float, ...]) -> None:
        self._buckets = buckets
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._buckets, value)] += times
        self._sum += value * times

    def cumulative(self) -> tuple[list[tuple[str, float]], float]:
        """(upper bound, observations up to it) by bucket, and the sum of what was observed."""
        total = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip((*self._buckets, "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((str(bound), total))
        return buckets, self._sum


class ServerMetrics:
    """What the HTTP layer measures. A "request" here is one choice, as it is for the engine."""

    def __init__(self) -> None:
        self.time_to_first_token = Histogram(_LATENCY_BUCKETS)
        self.inter_token_latency = Histogram(_LATENCY_BUCKETS)
        self.time_per_output_token = Histogram(_LATENCY_BUCKETS)
        self.request_latency = Histogram(_LATENCY_BUCKETS)
        self.request_prompt_tokens = Histogram(_TOKEN_BUCKETS)
        self.request_generation_tokens = Histogram(_TOKEN_BUCKETS)
        self.num_prompt_tokens = 0
        self.num_generation_tokens = 0
        self.num_aborted_generation_tokens = 0
        self.num_finished: Counter[str] = Counter()
        self.num_errors: Counter[int] = Counter()  # by status
        self._ends = deque[float](maxlen=_NUM_ENDS)  # of the last choices

    def end_choice(self, reason: FinishReason, now: float) -> None:
        self.num_finished[reason] += 1
        self._ends.append(now)

    def seconds_until_ended(self, num_choices: int) -> float:
        """How long it takes for so many choices to end if they go on ending as lately; 0 if that is not known."""
        if not self._ends:
            return 0.0
        return num_choices * (time.perf_counter() - self._ends[0]) / len(self._ends)

    def timer(self, arrival: float, num_prompt_tokens: int) -> "ChoiceTimer":
        """A clock for one choice whose request came at `arrival` (seconds of time.perf_counter)."""
        return ChoiceTimer(self, arrival, num_prompt_tokens)


class ChoiceTimer:
    """Turns the moments at which one choice's tokens arrive into observations."""

    __slots__ = ("_arrival", "_first", "_last", "_metrics", "_num_prompt_tokens", "num_tokens")

    def __init__(self, metrics: ServerMetrics, arrival: float, num_prompt_tokens: int) -> None:
        self._metrics = metrics
        self._arrival = arrival
        self._first = self._last = arrival
        self._num_prompt_tokens = num_prompt_tokens
        self.num_tokens = 0

    def observe_tokens(self, count: int, now: float) -> None:
        """`count` >= 1 tokens came at `now`; those of one delta share its gap evenly."""
        metrics = self._metrics
        metrics.num_generation_tokens += count
        if self.num_tokens:
            metrics.inter_token_latency.observe((now - self._last) / count, count)
        else:
            self._first = now
            metrics.time_to_first_token.observe(now - self._arrival)
            if count > 1:
                metrics.inter_token_latency.observe(0.0, count - 1)
        self.num_tokens += count
        self._last = now

    def finish(self, reason: FinishReason, now: float) -> None:
        """The choice has ended; once per choice."""
        metrics = self._metrics
        metrics.end_choice(reason, now)
        if reason in ("abort", "error"):
            metrics.num_aborted_generation_tokens += self.num_tokens
            return
        metrics.request_latency.observe(now - self._arrival)
        metrics.request_prompt_tokens.observe(self._num_prompt_tokens)
        metrics.request_generation_tokens.observe(self.num_tokens)
        if self.num_tokens > 1:
            metrics.time_per_output_token.observe((self._last - self._first) / (self.num_tokens - 1))


class MonotonicCounters:
    """The engine's counters, carried on over engines that start again from 0."""

    NAMES = ("num_steps", "num_preemptions", "prefix_cache_queries", "prefix_cache_hits")

    def __init__(self) -> None:
        self._base: Counter[str] = Counter()
        self._last: Counter[str] = Counter()

    def update(self, stats: EngineStats) -> dict[str, int]:
        current = Counter({name: getattr(stats, name) for name in self.NAMES})
        if any(current[name] < self._last[name] for name in self.NAMES):  # another engine than last time
            self._base.update(self._last)
        self._last = current
        return {name: self._base[name] + current[name] for name in self.NAMES}


class EngineCollector(Collector):
    """Everything under `pelton:`, and what vLLM has too under `vllm:`."""

    def __init__(self, engine: EngineClient, metrics: ServerMetrics, model: str) -> None:
        self._engine = engine
        self._metrics = metrics
        self._labels = {"model_name": model, "engine": "0"}
        self._prefixes = ("pelton:", "vllm:") if engine.config.vllm_metrics else ("pelton:",)
        self._counters = MonotonicCounters()

    def collect(self) -> Iterator[Metric]:
        stats = self._engine.stats
        counters = self._counters.update(stats)
        for prefix in self._prefixes:
            yield from self._gauges(prefix, stats)
            yield from self._engine_counters(prefix, counters)
            yield from self._server_counters(prefix)
            yield from self._histograms(prefix)
        yield from self._own(stats, counters)

    def _gauges(self, prefix: str, stats: EngineStats) -> Iterator[Metric]:
        yield self._gauge(f"{prefix}num_requests_running", "Requests in the running batch", stats.num_running)
        yield self._gauge(f"{prefix}num_requests_waiting", "Requests that wait to be scheduled", stats.num_waiting)
        yield self._gauge(f"{prefix}kv_cache_usage_perc", "Fraction of the KV pages in use, 0 to 1", stats.kv_usage)

    def _engine_counters(self, prefix: str, counters: dict[str, int]) -> Iterator[Metric]:
        yield self._counter(f"{prefix}num_preemptions", "Preempted requests", counters["num_preemptions"])
        yield self._counter(
            f"{prefix}prefix_cache_queries",
            "Prompt tokens looked up in the prefix cache",
            counters["prefix_cache_queries"],
        )
        yield self._counter(
            f"{prefix}prefix_cache_hits", "Prompt tokens found in the prefix cache", counters["prefix_cache_hits"]
        )

    def _server_counters(self, prefix: str) -> Iterator[Metric]:
        metrics = self._metrics
        yield self._counter(f"{prefix}prompt_tokens", "Prompt tokens processed", metrics.num_prompt_tokens)
        yield self._counter(f"{prefix}generation_tokens", "Tokens generated", metrics.num_generation_tokens)
        finished = CounterMetricFamily(
            f"{prefix}request_success", "Ended requests by reason", labels=(*self._labels, "finished_reason")
        )
        for reason in ("stop", "length", "abort", "error"):
            finished.add_metric((*self._labels.values(), reason), metrics.num_finished[reason])
        yield finished

    def _histograms(self, prefix: str) -> Iterator[Metric]:
        metrics = self._metrics
        for name, help_text, histogram in (
            ("time_to_first_token_seconds", "Seconds from arrival to the first token", metrics.time_to_first_token),
            ("inter_token_latency_seconds", "Seconds between tokens", metrics.inter_token_latency),
            (
                "request_time_per_output_token_seconds",
                "Seconds per token after the first, by request",
                metrics.time_per_output_token,
            ),
            ("e2e_request_latency_seconds", "Seconds from arrival to the last token", metrics.request_latency),
            ("request_prompt_tokens", "Prompt tokens by request", metrics.request_prompt_tokens),
            ("request_generation_tokens", "Generated tokens by request", metrics.request_generation_tokens),
        ):
            family = HistogramMetricFamily(f"{prefix}{name}", help_text, labels=tuple(self._labels))
            buckets, total = histogram.cumulative()
            family.add_metric(tuple(self._labels.values()), buckets, total)
            yield family

    def _own(self, stats: EngineStats, counters: dict[str, int]) -> Iterator[Metric]:
        yield self._gauge(
            "pelton:kv_waste", "Fraction of the allocated KV slots without a token, 0 to 1", stats.kv_waste
        )
        yield self._gauge("pelton:kv_pages", "KV pages of the pool", stats.num_pages)
        yield self._counter("pelton:steps", "Steps of the engine", counters["num_steps"])
        yield self._counter(
            "pelton:aborted_generation_tokens",
            "Tokens generated for requests that were aborted or failed; part of generation_tokens",
            self._metrics.num_aborted_generation_tokens,
        )
        errors = CounterMetricFamily(
            "pelton:error_responses", "Error answers by HTTP status", labels=(*self._labels, "status")
        )
        for status, count in sorted(self._metrics.num_errors.items()):
            errors.add_metric((*self._labels.values(), str(status)), count)
        yield errors

    def _gauge(self, name: str, help_text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, help_text, labels=tuple(self._labels))
        family.add_metric(tuple(self._labels.values()), value)
        return family

    def _counter(self, name: str, help_text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, help_text, labels=tuple(self._labels))
        family.add_metric(tuple(self._labels.values()), value)
        return family


def metrics_registry(engine: EngineClient, metrics: ServerMetrics, model: str) -> CollectorRegistry:
    """The registry that /metrics serves: ours and the process's."""
    registry = CollectorRegistry()
    registry.register(EngineCollector(engine, metrics, model))
    ProcessCollector(registry=registry)
    return registry


def render_metrics(registry: CollectorRegistry) -> bytes:
    """The Prometheus text format."""
    return generate_latest(registry)
