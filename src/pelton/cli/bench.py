"""`pelton bench`: measure a server under load, or the engine without one."""

import argparse
import contextlib
import dataclasses
import sys
from collections.abc import Generator, Sequence
from pathlib import Path

import msgspec
import uvloop
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from pelton.bench.report import failure_lines, latency_table, throughput_table
from pelton.bench.serve import OnProgress, ServeBenchmark, run_benchmark
from pelton.bench.throughput import ThroughputBenchmark, offline_table, run_throughput
from pelton.cli.flags import Parser, add_engine_arguments, engine_config
from pelton.cli.logs import configure_logging

DEFAULT_CONCURRENCY = 8


def add_arguments(parser: Parser) -> None:
    commands = parser.add_subparsers(title="what to measure", required=True, metavar="{serve,throughput}")
    serve = commands.add_parser("serve", description="load a server that speaks the OpenAI API and time its answers")
    _add_serve_arguments(serve)
    serve.set_defaults(measure=_bench_serve)
    throughput = commands.add_parser("throughput", description="time a batch of random prompts without a server")
    add_engine_arguments(throughput, groups=("model", "engine", "logging"))
    _add_lengths(throughput)
    throughput.set_defaults(measure=_bench_throughput)


def run(args: argparse.Namespace) -> int:
    return args.measure(args)


def _add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    server = parser.add_argument_group("server")
    server.add_argument("--base-url", default="http://127.0.0.1:8000", metavar="URL", help="(default: %(default)s)")
    server.add_argument(
        "--endpoint", default="completions", choices=("completions", "chat"), help="(default: %(default)s)"
    )
    server.add_argument("--model", metavar="NAME", help="the first of /v1/models by default")
    server.add_argument("--api-key", metavar="KEY", help="sent as a bearer token")
    load = parser.add_argument_group("load")
    load.add_argument(
        "--concurrency", type=int, metavar="N", help=f"closed loop: requests in flight (default: {DEFAULT_CONCURRENCY})"
    )
    load.add_argument("--request-rate", type=float, metavar="R", help="open loop: requests per second on average")
    load.add_argument(
        "--burstiness",
        type=float,
        default=1.0,
        metavar="X",
        help="1 for Poisson arrivals, less for bursts (default: 1)",
    )
    load.add_argument("--warmup", type=int, default=1, metavar="N", help="unmeasured requests (default: %(default)s)")
    load.add_argument("--timeout", type=float, default=600.0, metavar="S", help="seconds per request (default: 600)")
    _add_lengths(parser)
    prompts = parser.add_argument_group("prompts")
    prompts.add_argument(
        "--prompts", type=Path, metavar="FILE", help="instead of random ones: one a line, or .jsonl with `prompt`"
    )
    prompts.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        help="generate on past the end of an answer; on for random prompts, off for given ones",
    )
    prompts.add_argument("--seed", type=int, default=0, metavar="N", help="of prompts and arrivals (default: 0)")


def _add_lengths(parser: argparse.ArgumentParser) -> None:
    """What both benchmarks have."""
    group = parser.add_argument_group("size")
    group.add_argument("--num-prompts", type=int, default=100, metavar="N", help="requests (default: %(default)s)")
    group.add_argument(
        "--input-len", "--random-input-len", type=int, default=256, metavar="N", help="tokens in (default: %(default)s)"
    )
    group.add_argument(
        "--output-len", "--random-output-len", type=int, default=128, metavar="N", help="tokens out (default: 128)"
    )
    parser.add_argument("--json", metavar="FILE", help="write the numbers as JSON; - for stdout, instead of the table")


def _bench_serve(args: argparse.Namespace) -> int:
    """Exit code 1 when any request failed."""
    concurrency = args.concurrency
    if concurrency is None and args.request_rate is None:
        concurrency = DEFAULT_CONCURRENCY
    benchmark = ServeBenchmark(
        base_url=args.base_url,
        endpoint=args.endpoint,
        model=args.model,
        api_key=args.api_key,
        num_prompts=args.num_prompts,
        concurrency=concurrency,
        request_rate=args.request_rate,
        burstiness=args.burstiness,
        input_len=args.input_len,
        output_len=args.output_len,
        prompts=args.prompts,
        ignore_eos=args.ignore_eos,
        num_warmup=args.warmup,
        seed=args.seed,
        timeout=args.timeout,
    )
    with _progress(benchmark.num_prompts) as on_progress:
        report = uvloop.run(run_benchmark(benchmark, on_progress))
    _show((throughput_table(report), latency_table(report)), report.to_json(), args.json)
    for line in failure_lines(report):
        sys.stderr.write(f"pelton: {line}\n")
    return 1 if report.num_failed else 0


def _bench_throughput(args: argparse.Namespace) -> int:
    config = engine_config(args, log_level="warning")
    configure_logging(config.log_level)
    benchmark = ThroughputBenchmark(num_prompts=args.num_prompts, input_len=args.input_len, output_len=args.output_len)
    report = run_throughput(benchmark, config, show_progress=sys.stderr.isatty())
    _show((offline_table(report),), dataclasses.asdict(report), args.json)
    return 0


def _show(tables: Sequence[Table], numbers: dict[str, object], json_file: str | None) -> None:
    if json_file != "-":
        Console().print(*tables)
    if json_file is not None:
        text = msgspec.json.format(msgspec.json.encode(numbers), indent=2).decode() + "\n"
        if json_file == "-":
            sys.stdout.write(text)
        else:
            Path(json_file).write_text(text)


@contextlib.contextmanager
def _progress(total: int) -> Generator[OnProgress | None]:
    """A bar on a terminal; nothing elsewhere, where it would fill logs and cost the client time."""
    if not sys.stderr.isatty():
        yield None
        return
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("requests", total=total)
        yield lambda _: progress.advance(task)
