"""`pelton bench`: measure a server under load."""

import argparse
import contextlib
import sys
from collections.abc import Generator
from pathlib import Path

import msgspec
import uvloop
from rich.console import Console
from rich.progress import Progress

from pelton.bench.report import Report, failure_lines, latency_table, throughput_table
from pelton.bench.serve import OnProgress, ServeBenchmark, run_benchmark
from pelton.cli.flags import Parser

DEFAULT_CONCURRENCY = 8


def add_arguments(parser: Parser) -> None:
    commands = parser.add_subparsers(title="what to measure", required=True, metavar="{serve}")
    serve = commands.add_parser("serve", description="load a server that speaks the OpenAI API and time its answers")
    _add_serve_arguments(serve)
    serve.set_defaults(measure=_bench_serve)


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
    load.add_argument("--num-prompts", type=int, default=100, metavar="N", help="requests (default: %(default)s)")
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
    _add_prompt_arguments(parser.add_argument_group("prompts"))
    parser.add_argument("--json", metavar="FILE", help="write the numbers as JSON; - for stdout, instead of the tables")


def _add_prompt_arguments(group: "argparse._ArgumentGroup") -> None:  # pyright: ignore[reportPrivateUsage]
    group.add_argument(
        "--random-input-len", "--input-len", type=int, default=256, metavar="N", help="tokens in (default: %(default)s)"
    )
    group.add_argument(
        "--random-output-len", "--output-len", type=int, default=128, metavar="N", help="tokens out (default: 128)"
    )
    group.add_argument(
        "--prompts", type=Path, metavar="FILE", help="instead of random ones: one a line, or .jsonl with `prompt`"
    )
    group.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        help="generate on past the end of an answer; on for random prompts, off for given ones",
    )
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of prompts and arrivals (default: 0)")


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
        input_len=args.random_input_len,
        output_len=args.random_output_len,
        prompts=args.prompts,
        ignore_eos=args.ignore_eos,
        num_warmup=args.warmup,
        seed=args.seed,
        timeout=args.timeout,
    )
    with _progress(benchmark.num_prompts) as on_progress:
        report = uvloop.run(run_benchmark(benchmark, on_progress))
    _show(report, args.json)
    return 1 if report.num_failed else 0


def _show(report: Report, json_file: str | None) -> None:
    if json_file != "-":
        console = Console()
        console.print(throughput_table(report), latency_table(report))
    for line in failure_lines(report):
        sys.stderr.write(f"pelton: {line}\n")
    if json_file is not None:
        text = msgspec.json.format(msgspec.json.encode(report.to_json()), indent=2).decode() + "\n"
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
