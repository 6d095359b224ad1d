"""What a streamed token costs outside the model: processor time of HTTP process, engine process and load generator.

The engine process runs the real step loop and scheduler around a runner that sleeps and then answers words, so nothing
but the way of a token is measured. Per token of all streams together; the fastest and the median of the rounds. Costs
of a request (its prompt's too) are spread over its tokens: --tokens 1 shows them.

    python benchmarks/host_cost.py [--streams 64] [--tokens 128] [--prompt 256] [--step 0.01]
"""

import argparse
import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import uvloop

from pelton.bench.client import Outcome, send_request
from pelton.bench.connection import Address, HttpClient
from pelton.bench.serve import run_closed_loop
from pelton.bench.workload import Prompt
from pelton.config import EngineConfig, chosen
from pelton.engine.client import AsyncEngine
from pelton.engine.describe import describe
from pelton.engine.engine import Engine
from pelton.engine.messages import Start
from pelton.engine.process import run
from pelton.http.listener import bind
from pelton.http.server import run_server
from pelton.sched.pages import PagePool
from pelton.sched.scheduler import Scheduler
from pelton.structured.masks import TokenMasks
from pelton.types import Plan, Sampled

NUM_PAGES = 8192
WORDS = ("time", "people", "way", "water", "word", "number", "part", "sound", "work", "place", "year", "back", "give")


class SleepingRunner:
    """Answers the next of a thousand tokens, `seconds` after the step before."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._tokens = [Sampled(1000 + 37 * index) for index in range(1024)]
        self._plan = Plan(())
        self._num_steps = 0
        self._due = 0.0

    def forward(self, plan: Plan) -> None:
        self._plan = plan
        self._num_steps += 1
        time.sleep(max(self._due - time.perf_counter(), 0.0))
        self._due = time.perf_counter() + self._seconds

    def sample(self, masks: TokenMasks | None = None) -> list[Sampled | None]:
        del masks
        return [
            self._tokens[(self._num_steps + index) % 1024] if row.sample else None
            for index, row in enumerate(self._plan.rows)
        ]


def run_engine(descriptor: int, step: float) -> None:
    def build(start: Start) -> Engine:
        config = start.config
        scheduler = Scheduler(
            PagePool(NUM_PAGES, config.page_size),
            max_batch_tokens=chosen(config.max_num_batched_tokens),
            max_running=config.max_num_seqs,
            max_model_len=chosen(config.max_model_len),
            eos_token_ids=start.info.eos_token_ids,
        )
        return Engine(scheduler, SleepingRunner(step))

    os._exit(run(socket.socket(fileno=descriptor), build))


class Host:
    """Runs this file as the engine process."""

    def __init__(self, step: float) -> None:
        self._step = step
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            descriptor = theirs.fileno()
            command = [sys.executable, __file__, "--engine", str(descriptor), "--step", str(self._step)]
            self.process = subprocess.Popen(command, pass_fds=[descriptor])
        return ours

    def stop(self, *, at_once: bool = False) -> None:
        del at_once
        if self.process is not None:
            self.process.wait()


async def serve(port: int, step: float) -> None:
    model = describe(EngineConfig(port=port))
    host = Host(step)
    start = Start(model.config, model.info, str(model.path))
    engine = AsyncEngine(model.config, model.info, model.tokenizer, host, start)
    listener = bind(model.config)
    await engine.connect(host.start())
    assert host.process is not None
    print(host.process.pid, flush=True)
    try:
        await run_server(engine, model.config, listener)
    finally:
        await engine.stop()


def processor_seconds(pid: int) -> float:
    """Time on a processor of all threads, of which only Linux tells in nanoseconds."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


async def measure(args: argparse.Namespace, port: int, pids: tuple[int, int, int]) -> list[list[float]]:
    """Microseconds per token by process, a list a round."""
    client = HttpClient(Address.parse(f"http://127.0.0.1:{port}"))
    generator = random.Random(0)

    async def send(prompt: Prompt, started: float | None) -> Outcome:
        return await send_request(client, "completions", {"temperature": 0.0, "ignore_eos": True}, prompt, started)

    rounds: list[list[float]] = []
    for _ in range(args.rounds + 1):
        texts = [" ".join(generator.choices(WORDS, k=args.prompt)) for _ in range(args.streams)]
        before = [processor_seconds(pid) for pid in pids]
        outcomes = await run_closed_loop(
            send, [Prompt(text, args.tokens) for text in texts], args.streams, lambda _: None
        )
        after = [processor_seconds(pid) for pid in pids]
        num_tokens = sum(outcome.output_tokens for outcome in outcomes)
        assert num_tokens == args.streams * args.tokens, [outcome.error for outcome in outcomes]
        rounds.append([1e6 * (end - begin) / num_tokens for begin, end in zip(before, after, strict=True)])
    client.close()
    return rounds[1:]  # the first one warms up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--prompt", type=int, default=256, help="words of each prompt")
    parser.add_argument("--step", type=float, default=0.01, help="seconds of a step")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engine", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.engine is not None:
        run_engine(args.engine, args.step)
    if args.serve is not None:
        uvloop.run(serve(args.serve, args.step))
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, __file__, "--serve", str(port), "--step", str(args.step)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        pids = server.pid, int(server.stdout.readline()), os.getpid()
        try:
            rounds = uvloop.run(measure(args, port, pids))
        finally:
            server.terminate()
    for name, values in zip(("HTTP", "engine", "load generator"), zip(*rounds, strict=True), strict=True):
        print(f"{name:14} {min(values):6.1f} us a token, median {median(values):6.1f}")


if __name__ == "__main__":
    main()
