"""Pelton beside vLLM, llama.cpp and OpenVINO GenAI: the same models, prompts and client on the same machine.

Engines run in turn, never two at once, and every round runs all of them, so that a slow hour of the machine hits all
alike. Prints markdown tables of medians and writes all numbers as JSON.

    python benchmarks/compare.py --install      # once; `make bench-peers` does this and a full comparison
    python benchmarks/compare.py --engines pelton,vllm-w8a8 --clients 64 --rounds 1 --models smollm2-135m
    python benchmarks/compare.py --pelton-config "dense=" --pelton-config "int8=--quantize int8"
"""

import argparse
import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path

from peers.catalog import MODELS, SMOLLM2, Engine, ModelShape, Setup, parse_pelton_config, peers, pelton, select
from peers.install import check_llama, install_all
from peers.limits import Limits
from peers.measure import Workload, measure
from peers.report import Row, limits_table, markdown, summarize_rows

from pelton.cli.hardware import probe_machine

DEFAULT_ENGINES = ["pelton", "vllm-w8a8", "vllm-bf16", "llama-q4_0", "llama-q8_0", "openvino-q8_0"]


def words(text: str) -> list[str]:
    return text.split(",")


def numbers(text: str) -> list[int]:
    return [int(word) for word in words(text)]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--install", action="store_true", help="install the peers and write the models, measure nothing"
    )
    parser.add_argument("--cache", type=Path, default=Path(".cache/peers"), help="peers, models and logs; %(default)s")
    parser.add_argument("--models", type=words, default=list(MODELS), help=f"of {','.join(MODELS)}")
    parser.add_argument(
        "--engines",
        type=words,
        default=DEFAULT_ENGINES,
        help=f"names, or their beginnings up to a hyphen (pelton,vllm,llama,openvino); {','.join(DEFAULT_ENGINES)}",
    )
    parser.add_argument(
        "--pelton-config",
        action="append",
        default=[],
        metavar="NAME=FLAGS",
        help="a row pelton-NAME with these flags of `pelton serve`; repeatable. {bf16}, {w8a8}, {q8_0}, {q4_0} among "
        "the flags stand for that form of the model",
    )
    parser.add_argument("--pelton", type=Path, default=Path(sys.executable).with_name("pelton"), help="the program")
    parser.add_argument("--clients", type=numbers, default=[1, 8, 64], help="how many at once; 1,8,64")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=numbers, help="requests for each of --clients; 6,24,128")
    parser.add_argument("--input-len", type=int, default=256, help="words of a prompt")
    parser.add_argument("--output-len", type=int, default=128, help="tokens of an answer")
    parser.add_argument("--kv-gib", type=int, default=2, help="KV cache of every engine")
    parser.add_argument("--json", type=Path, default=Path("build/compare.json"))
    args = parser.parse_args()
    if args.requests is not None and len(args.requests) != len(args.clients):
        parser.error("--requests needs as many numbers as --clients")
    if unknown := set(args.models) - set(MODELS):
        parser.error(f"--models: unknown {', '.join(sorted(unknown))}; there are {', '.join(MODELS)}")
    return args


def default_requests(clients: int) -> int:
    """Enough for percentiles, few enough for a run of minutes: two waves at 64 clients, three at 8, six at one."""
    return {1: 6}.get(clients, max(2, min(3, 192 // clients)) * clients)


def engines_of(shape: ModelShape, setup: Setup, args: argparse.Namespace) -> list[Engine]:
    """Those chosen, Pelton's first.

    Raises:
        ValueError: one is unknown or not installed.
    """
    configurations = [parse_pelton_config(text) for text in args.pelton_config] or [("dense", [])]
    own = [pelton(shape, setup, name, flags) for name, flags in configurations]
    engines = select([*own, *peers(shape, setup)], args.engines)
    missing = [f"{engine.name}: {path}" for engine in engines for path in engine.needs if not path.exists()]
    if missing:
        lines = "\n".join(missing)
        raise ValueError(f"not installed; run `make bench-peers`, or choose others with --engines:\n{lines}")
    return engines


def install(cache: Path) -> None:
    install_all(cache)
    folder = Path(__file__).parent
    subprocess.run([sys.executable, "-m", "peers.checkpoints", "--cache", str(cache)], check=True, cwd=folder)
    check_llama(cache / "llama.cpp", cache / "models" / SMOLLM2.name / "q4_0.gguf")


def compare(args: argparse.Namespace) -> None:
    """Measure everything. Tables are printed when a model is through, the JSON is written anew after every engine.

    Raises:
        ValueError: an engine is unknown or not installed.
    """
    setup = Setup(cache=args.cache, kv_gib=args.kv_gib, pelton=args.pelton)
    requests = args.requests or [default_requests(clients) for clients in args.clients]
    workload = Workload(
        requests=dict(zip(args.clients, requests, strict=True)), input_len=args.input_len, output_len=args.output_len
    )
    tables = {name: [Row(engine) for engine in engines_of(MODELS[name], setup, args)] for name in args.models}
    limits = Limits(setup.cache, setup.num_threads)
    limits.compile()
    for name, rows in tables.items():
        for index in range(args.rounds):
            limits.sample()
            for row in rows:
                run_once(row, workload, index, setup.cache / "logs" / name)
                summarize_rows(rows, MODELS[name], workload, limits.best(), limits.bandwidth)
                write_json(args, workload, limits, tables)
        print(markdown(rows, MODELS[name], workload), end="\n\n", flush=True)
    print(limits_table(limits.best()))


def write_json(args: argparse.Namespace, workload: Workload, limits: Limits, tables: dict[str, list[Row]]) -> None:
    results = {
        "machine": dataclasses.asdict(probe_machine()),
        "arguments": {name: str(value) for name, value in vars(args).items()},
        "workload": dataclasses.asdict(workload),
        "limits": limits.best(),
        "limit_samples": limits.samples,
        "models": {name: {row.engine.name: row.to_json() for row in rows} for name, rows in tables.items()},
    }
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(results, indent=2) + "\n")


def run_once(row: Row, workload: Workload, index: int, logs: Path) -> None:
    """One round of one engine. One that fails is reported and leaves the others their turn."""
    begun = time.perf_counter()
    try:
        result = measure(row.engine, workload, index, logs)
    except RuntimeError as error:
        print(f"{row.engine.name}: {error}", file=sys.stderr)
        return
    row.rounds.append(result)
    speeds = ", ".join(f"{result.metrics[f'tok_s_c{clients}']:.1f}" for clients in workload.requests)
    seconds = time.perf_counter() - begun
    print(f"round {index + 1}, {row.engine.name}: {speeds} tok/s ({seconds:.0f} s)", file=sys.stderr)


def main() -> None:
    args = parse_arguments()
    args.cache = args.cache.resolve()
    if args.install:
        install(args.cache)
        return
    try:
        compare(args)
    except ValueError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
