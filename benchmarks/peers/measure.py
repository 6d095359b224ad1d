"""One engine, started once: every figure of the comparison as a flat mapping."""

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from peers.catalog import Engine
from peers.server import Server, other_load, running
from peers.target import HttpTarget, LoopTarget, Target
from pelton.bench.client import Outcome
from pelton.bench.report import Report, summarize
from pelton.bench.workload import Prompt, random_prompts

READY_SECONDS = 900.0
MEMORY_SAMPLE_SECONDS = 5.0
SETTLE_SECONDS = 1.0
WARM_UP_TOKENS = 16
PREFIX_PROMPTS = 3
PREFIX_TOKENS = 8  # of answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Closed loops of `clients`, each with its number of requests; prompts and answers of fixed lengths in tokens."""

    requests: dict[int, int]  # clients: requests
    input_len: int = 256
    output_len: int = 128
    prefix_len: int = 512
    idle_seconds: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one start of an engine gave. `problems` say what makes its figures doubtful."""

    metrics: dict[str, float]
    problems: list[str] = field(default_factory=list[str])


def measure(engine: Engine, workload: Workload, seed: int, logs: Path) -> Round:
    """Start the engine, run the workload and stop it. The same `seed` gives the same prompts.

    Raises:
        RuntimeError: it did not start, or ended early.
    """
    problems: list[str] = []
    load = other_load()
    if load > 0.1:
        problems.append(f"others kept {load:.2f} cores busy before the start")
    with running(engine, logs) as server:
        metrics = asyncio.run(_measure(engine, server, workload, seed, problems))
    return Round(metrics={**metrics, "other_load": load}, problems=problems)


async def _measure(
    engine: Engine, server: Server, workload: Workload, seed: int, problems: list[str]
) -> dict[str, float]:
    target: Target = HttpTarget(server, engine.settings) if engine.speaks_http else LoopTarget(server)
    try:
        first = await target.wait_until_ready(Prompt("The", 2), READY_SECONDS)
        metrics = {"start_s": first.started + first.ttft - server.started}
        memory = [server.memory()]
        for clients, requests in workload.requests.items():
            async with _memory_samples(server, memory):
                report = await _load(target, workload, clients, requests, seed, problems)
            metrics |= _load_metrics(clients, report)
            server.check()
        metrics |= await _prefix_metrics(target, workload, seed, problems)
        metrics["idle_cpu"] = await _idle_cpu(server, workload.idle_seconds)
        metrics["memory_gib"] = max(memory) / 2**30
        return metrics
    finally:
        target.close()


@contextlib.asynccontextmanager
async def _memory_samples(server: Server, samples: list[int]) -> AsyncIterator[None]:
    """Adds samples while the context lasts, and one at its end."""

    async def sample() -> None:
        while True:
            await asyncio.sleep(MEMORY_SAMPLE_SECONDS)
            samples.append(await asyncio.to_thread(server.memory))

    task = asyncio.create_task(sample())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        samples.append(server.memory())


async def _load(
    target: Target, workload: Workload, clients: int, requests: int, seed: int, problems: list[str]
) -> Report:
    """A short warm-up with as many clients, and the measured loop. All prompts differ, those of other loops too.

    Raises:
        RuntimeError: no request succeeded.
    """
    seed = 1000 * seed + clients
    warm_up = await random_prompts(min(clients, requests), workload.input_len, WARM_UP_TOKENS, seed + 500_000)
    prompts = await random_prompts(requests, workload.input_len, workload.output_len, seed)
    await target.load(warm_up, clients)
    cpu_seconds = time.process_time()
    outcomes = await target.load(prompts, clients)
    cpu_seconds = time.process_time() - cpu_seconds
    if all(outcome.error is not None for outcome in outcomes):
        raise RuntimeError(f"all requests of {clients} clients failed: {outcomes[0].error}")
    problems += _doubts(outcomes, workload.output_len, f"{clients} clients")
    return summarize(outcomes, cpu_seconds)


def _doubts(outcomes: Sequence[Outcome], output_len: int, what: str) -> list[str]:
    """Failures, answers of another length than asked for, and streams that joined many tokens into one chunk."""
    doubts: list[str] = []
    good = [outcome for outcome in outcomes if outcome.error is None]
    if len(good) < len(outcomes):
        reason = next(outcome.error for outcome in outcomes if outcome.error is not None)
        doubts.append(f"{what}: {len(outcomes) - len(good)} of {len(outcomes)} requests failed: {reason}")
    lengths = sorted({outcome.output_tokens for outcome in good} - {output_len})
    if lengths:
        doubts.append(f"{what}: answers of {lengths[0]} to {lengths[-1]} tokens instead of {output_len}")
    chunks = sum(len(outcome.gaps) + 1 for outcome in good)
    tokens = sum(outcome.output_tokens for outcome in good)
    if abs(chunks - tokens) > 0.02 * tokens:
        doubts.append(f"{what}: {tokens} tokens came in {chunks} chunks, so gaps are not those of tokens")
    return doubts


def _load_metrics(clients: int, report: Report) -> dict[str, float]:
    good = max(report.num_requests - report.num_failed, 1)
    return {
        f"tok_s_c{clients}": report.output_tokens_per_second,
        f"ttft_p50_ms_c{clients}": report.ttft.p50,
        f"ttft_p99_ms_c{clients}": report.ttft.p99,
        f"tpot_ms_c{clients}": report.tpot.p50,
        f"itl_p99_ms_c{clients}": report.itl.p99,
        f"prompt_tokens_c{clients}": report.prompt_tokens / good,
        f"requests_s_c{clients}": report.requests_per_second,
        f"client_cpu_c{clients}": report.client_cpu,
    }


async def _prefix_metrics(target: Target, workload: Workload, seed: int, problems: list[str]) -> dict[str, float]:
    """Medians of the time to the first token of long prompts, sent once, and sent once more."""
    prompts = await random_prompts(PREFIX_PROMPTS, workload.prefix_len, PREFIX_TOKENS, 1000 * seed + 999)
    first: list[Outcome] = []
    again: list[Outcome] = []
    for prompt in prompts:
        first += await target.load([prompt], 1)
        again += await target.load([prompt], 1)
    problems += _doubts([*first, *again], PREFIX_TOKENS, "prompts sent twice")
    return {
        "prefix_first_ms": 1000 * statistics.median(outcome.ttft for outcome in first),
        "prefix_again_ms": 1000 * statistics.median(outcome.ttft for outcome in again),
        "prefix_prompt_tokens": statistics.median(outcome.prompt_tokens for outcome in first),
    }


async def _idle_cpu(server: Server, seconds: float) -> float:
    """Fraction of one core that the engine takes with nothing to do."""
    await asyncio.sleep(SETTLE_SECONDS)
    begun = server.cpu_seconds()
    await asyncio.sleep(seconds)
    return (server.cpu_seconds() - begun) / seconds
