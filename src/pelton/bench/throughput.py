"""Offline throughput: a batch of prompts through the engine in this process, without HTTP or tokenizing."""

import dataclasses
import random
import time
from dataclasses import dataclass

from rich.table import Table

import pelton
from pelton.config import EngineConfig
from pelton.types import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputBenchmark:
    """How many prompts of how many random tokens, and how many tokens to generate for each.

    Raises:
        ValueError: a count is below 1.
    """

    num_prompts: int = 100
    input_len: int = 256
    output_len: int = 128

    def __post_init__(self) -> None:
        for name in ("num_prompts", "input_len", "output_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputReport:
    """Tokens are counts, `load_seconds` is from nothing to a loaded model, `duration` that of the batch in seconds."""

    num_requests: int
    prompt_tokens: int
    output_tokens: int
    load_seconds: float
    duration: float
    requests_per_second: float
    output_tokens_per_second: float
    total_tokens_per_second: float


def run_throughput(benchmark: ThroughputBenchmark, config: EngineConfig, *, show_progress: bool) -> ThroughputReport:
    """Load the model, warm up with one short prompt, and time the batch.

    Args:
        config: what the engine gets; its seed draws the prompts.
    """
    started = time.perf_counter()
    llm = pelton.LLM(**dataclasses.asdict(config))
    loaded = time.perf_counter()
    params = SamplingParams(max_tokens=benchmark.output_len, temperature=0.0, ignore_eos=True)
    llm.generate([[0, 1]], SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True), use_tqdm=False)
    prompts = random_token_ids(benchmark, llm.info.vocab_size, config.seed)
    begun = time.perf_counter()
    results = llm.generate(prompts, params, use_tqdm=show_progress)
    duration = time.perf_counter() - begun
    prompt_tokens = sum(len(result.prompt_token_ids) for result in results)
    output_tokens = sum(len(output.token_ids) for result in results for output in result.outputs)
    return ThroughputReport(
        num_requests=len(results),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        load_seconds=loaded - started,
        duration=duration,
        requests_per_second=len(results) / duration,
        output_tokens_per_second=output_tokens / duration,
        total_tokens_per_second=(prompt_tokens + output_tokens) / duration,
    )


def random_token_ids(benchmark: ThroughputBenchmark, vocab_size: int, seed: int) -> list[list[int]]:
    """Prompts of uniformly drawn token ids."""
    rng = random.Random(seed)
    return [[rng.randrange(vocab_size) for _ in range(benchmark.input_len)] for _ in range(benchmark.num_prompts)]


def offline_table(report: ThroughputReport) -> Table:
    """Counts and rates."""
    table = Table("", "value", title="throughput")
    table.add_row("requests", str(report.num_requests))
    table.add_row("model loaded in", f"{report.load_seconds:.2f} s")
    table.add_row("duration", f"{report.duration:.2f} s")
    table.add_row("requests per second", f"{report.requests_per_second:.2f}")
    table.add_row("input tokens", str(report.prompt_tokens))
    table.add_row("output tokens", str(report.output_tokens))
    table.add_row("output tokens per second", f"{report.output_tokens_per_second:.1f}")
    table.add_row("total tokens per second", f"{report.total_tokens_per_second:.1f}")
    table.columns[1].justify = "right"
    return table
