"""Serving benchmark: start-up, latency and throughput of `pelton serve` at several concurrencies, and wasted KV slots.

Starts a server on a free port, measures from process start to the first streamed token, then runs the load generator
of `pelton bench serve` in a closed loop. Prints a markdown table and writes all numbers as JSON.

    python benchmarks/serving.py [MODEL] [--concurrency 1 8 64] [-- SERVER FLAGS]
"""

import argparse
import asyncio
import contextlib
import dataclasses
import json
import platform
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import uvloop
from prometheus_client.parser import text_string_to_metric_families

import pelton
from pelton.bench.client import first_model, send_request
from pelton.bench.connection import Address, HttpClient
from pelton.bench.report import Report
from pelton.bench.serve import ServeBenchmark, run_benchmark
from pelton.bench.workload import Prompt
from pelton.cli.hardware import probe_machine

START_SECONDS = 300.0
POLL_SECONDS = 0.005
STOP_SECONDS = 40.0
KV_SAMPLE_SECONDS = 0.5


@dataclasses.dataclass(frozen=True)
class Run:
    """One concurrency. `kv_waste` are the samples taken while it ran: fractions of the allocated slots."""

    concurrency: int
    report: Report
    kv_waste: list[float]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def running_server(port: int, arguments: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """`pelton serve` as a process of its own, whose output comes only when it fails."""
    command = [sys.executable, "-m", "pelton.cli", "serve", *arguments, "--port", str(port), "--log-level", "warning"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            yield server
        finally:
            server.terminate()
            try:
                server.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()


async def wait_until_connectable(server: subprocess.Popen[bytes], port: int) -> None:
    """The server listens before its model is loaded; a request sent then waits for it."""
    deadline = time.perf_counter() + START_SECONDS
    while time.perf_counter() < deadline:
        if server.poll() is not None:
            raise SystemExit(f"the server ended with exit code {server.returncode}")
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(POLL_SECONDS)
            continue
        writer.close()
        return
    raise SystemExit(f"the server does not listen after {START_SECONDS:g} s")


async def first_token_time(client: HttpClient) -> float:
    """Clock time of the first token that the server streams."""
    model = await first_model(client)
    outcome = await send_request(client, "completions", {"model": model, "temperature": 0.0}, Prompt("The", 2))
    if outcome.error is not None:
        raise SystemExit(f"the first request failed: {outcome.error}")
    return outcome.started + outcome.ttft


@contextlib.asynccontextmanager
async def kv_waste_samples(client: HttpClient) -> AsyncIterator[list[float]]:
    """Reads pelton:kv_waste from /metrics twice a second within the context."""
    samples: list[float] = []

    async def sample() -> None:
        while True:
            await asyncio.sleep(KV_SAMPLE_SECONDS)
            text = (await client.get("/metrics")).body.decode()
            families = {family.name: family for family in text_string_to_metric_families(text)}
            if families["pelton:kv_cache_usage_perc"].samples[0].value > 0:
                samples.append(families["pelton:kv_waste"].samples[0].value)

    task = asyncio.create_task(sample())
    try:
        yield samples
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def measure(args: argparse.Namespace, url: str, client: HttpClient) -> list[Run]:
    runs: list[Run] = []
    for index, concurrency in enumerate(args.concurrency):
        benchmark = ServeBenchmark(
            base_url=url,
            num_prompts=max(args.min_prompts, args.rounds * concurrency),
            concurrency=concurrency,
            input_len=args.input_len,
            output_len=args.output_len,
            seed=index,  # other prompts each time: the prefix cache must not know them
        )
        async with kv_waste_samples(client) as samples:
            report = await run_benchmark(benchmark)
        runs.append(Run(concurrency, report, samples))
        print(f"concurrency {concurrency}: {report.output_tokens_per_second:.1f} tokens/s", file=sys.stderr)
    return runs


async def run(args: argparse.Namespace) -> tuple[float, list[Run]]:
    """Seconds from process start to the first streamed token, and the load tests."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    begun = time.perf_counter()
    with running_server(port, args.server_arguments) as server:
        await wait_until_connectable(server, port)
        client = HttpClient(Address.parse(url))
        try:
            start_seconds = await first_token_time(client) - begun
            return start_seconds, await measure(args, url, client)
        finally:
            client.close()


def markdown(start_seconds: float, runs: list[Run]) -> str:
    lines = [
        f"Process start to first streamed token: {start_seconds:.2f} s",
        "",
        "| concurrency | requests | failed | output tok/s | total tok/s | TTFT ms p50 | p99 | TPOT ms p50 | p99 "
        "| ITL ms p99 | KV waste mean | max | client CPU |",
        "|" + "---:|" * 13,
    ]
    for each in runs:
        report, waste = each.report, each.kv_waste or [0.0]
        lines.append(
            f"| {each.concurrency} | {report.num_requests} | {report.num_failed} "
            f"| {report.output_tokens_per_second:.1f} | {report.total_tokens_per_second:.1f} "
            f"| {report.ttft.p50:.1f} | {report.ttft.p99:.1f} | {report.tpot.p50:.2f} | {report.tpot.p99:.2f} "
            f"| {report.itl.p99:.2f} | {sum(waste) / len(waste):.1%} | {max(waste):.1%} | {report.client_cpu:.1%} |"
        )
    return "\n".join(lines)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--input-len", type=int, default=256)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--min-prompts", type=int, default=8, help="requests at a low concurrency")
    parser.add_argument("--rounds", type=int, default=3, help="requests as a multiple of the concurrency")
    parser.add_argument("--json", type=Path, default=Path("build/serving.json"))
    parser.add_argument("server_arguments", nargs="*", metavar="SERVER ARGUMENT", help="model and flags, after --")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    start_seconds, runs = uvloop.run(run(args))
    print(markdown(start_seconds, runs))
    args.json.parent.mkdir(parents=True, exist_ok=True)
    numbers = {
        "pelton": pelton.__version__,
        "python": platform.python_version(),
        "machine": dataclasses.asdict(probe_machine()),
        "server_arguments": args.server_arguments,
        "input_len": args.input_len,
        "output_len": args.output_len,
        "start_seconds": start_seconds,
        "runs": [dataclasses.asdict(each) for each in runs],
    }
    args.json.write_text(json.dumps(numbers, indent=2) + "\n")


if __name__ == "__main__":
    main()
