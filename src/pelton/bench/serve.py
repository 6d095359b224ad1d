"""The load generator: sends a workload to a server in a closed or an open loop."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pelton.bench.client import Endpoint, Outcome, decode_json, error_message, first_model, prompt_member, send_request
from pelton.bench.connection import Address, HttpClient
from pelton.bench.report import Report, summarize
from pelton.bench.workload import Prompt, TokenCounter, arrival_times, random_prompts, read_prompts

Sender = Callable[[Prompt, float | None], Awaitable[Outcome]]
OnProgress = Callable[[Outcome], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeBenchmark:
    """What to send where. Exactly one of `concurrency` (closed loop) and `request_rate` (open loop) is set.

    Raises:
        ValueError: a setting is out of range, or one has no effect beside another.
    """

    base_url: str = "http://127.0.0.1:8000"
    endpoint: Endpoint = "completions"
    model: str | None = None  # None: the first of /v1/models
    api_key: str | None = None
    num_prompts: int = 100
    concurrency: int | None = None  # requests in flight
    request_rate: float | None = None  # requests per second
    burstiness: float = 1.0
    input_len: int = 256
    output_len: int = 128
    prompts: Path | None = None  # instead of random ones
    ignore_eos: bool | None = None  # None: only with random prompts
    num_warmup: int = 1
    seed: int = 0
    timeout: float = 600.0  # seconds for one request

    def __post_init__(self) -> None:
        if (self.concurrency is None) == (self.request_rate is None):
            raise ValueError("give one of --concurrency and --request-rate")
        if self.request_rate is None and self.burstiness != 1.0:
            raise ValueError("--burstiness needs --request-rate")
        for name in ("num_prompts", "concurrency", "input_len", "output_len"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
        for name in ("request_rate", "burstiness", "timeout"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"--{name.replace('_', '-')} must be above 0, got {value}")
        if self.num_warmup < 0:
            raise ValueError(f"--warmup must be at least 0, got {self.num_warmup}")


async def run_benchmark(benchmark: ServeBenchmark, on_progress: OnProgress | None = None) -> Report:
    """Run the whole load test and summarize it.

    Raises:
        ValueError: the server lists no model, refuses the key, or no warm-up request succeeds.
        OSError: the server cannot be reached.
    """
    client = HttpClient(Address.parse(benchmark.base_url), benchmark.api_key)
    try:
        model = benchmark.model or await first_model(client)
        warmup, prompts = await _make_prompts(benchmark, client, model)
        send = _sender(benchmark, client, model)
        for outcome in [await send(prompt, None) for prompt in warmup]:
            if outcome.error is not None:
                raise ValueError(f"the warm-up request failed: {outcome.error}")
        cpu_seconds = time.process_time()
        outcomes = await _run_load(benchmark, send, prompts, on_progress or _ignore)
        return summarize(outcomes, time.process_time() - cpu_seconds)
    finally:
        client.close()


async def _run_load(
    benchmark: ServeBenchmark, send: Sender, prompts: Sequence[Prompt], on_progress: OnProgress
) -> list[Outcome]:
    if benchmark.concurrency is not None:
        return await run_closed_loop(send, prompts, benchmark.concurrency, on_progress)
    assert benchmark.request_rate is not None
    times = arrival_times(len(prompts), benchmark.request_rate, benchmark.burstiness, benchmark.seed)
    return await run_open_loop(send, prompts, times, on_progress)


async def run_closed_loop(
    send: Sender, prompts: Sequence[Prompt], concurrency: int, on_progress: OnProgress
) -> list[Outcome]:
    """Keep `concurrency` requests in flight until all prompts are sent. Outcomes come as they end."""
    remaining = iter(prompts)
    outcomes: list[Outcome] = []

    async def work() -> None:
        for prompt in remaining:  # shared by the workers: each takes the next
            outcome = await send(prompt, None)
            outcomes.append(outcome)
            on_progress(outcome)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(prompts))):
            group.create_task(work())
    return outcomes


async def run_open_loop(
    send: Sender, prompts: Sequence[Prompt], times: Sequence[float], on_progress: OnProgress
) -> list[Outcome]:
    """Send each prompt when it is due, however many are in flight.

    Latency counts from the time a request was due, so that a load generator that falls behind does not flatter.
    """
    origin = time.perf_counter()
    outcomes: list[Outcome] = []

    async def work(prompt: Prompt, due: float) -> None:
        outcome = await send(prompt, due)
        outcomes.append(outcome)
        on_progress(outcome)

    async with asyncio.TaskGroup() as group:
        for prompt, offset in zip(prompts, times, strict=True):
            await asyncio.sleep(origin + offset - time.perf_counter())
            group.create_task(work(prompt, origin + offset))
    return outcomes


def _sender(benchmark: ServeBenchmark, client: HttpClient, model: str) -> Sender:
    ignore_eos = benchmark.prompts is None if benchmark.ignore_eos is None else benchmark.ignore_eos
    settings: dict[str, object] = {"model": model, "temperature": 0.0}
    if ignore_eos:  # left out otherwise: servers beyond vLLM and Pelton may not know it
        settings["ignore_eos"] = True

    async def send(prompt: Prompt, started: float | None) -> Outcome:
        begun = time.perf_counter() if started is None else started
        try:
            async with asyncio.timeout(benchmark.timeout):
                return await send_request(client, benchmark.endpoint, settings, prompt, begun)
        except TimeoutError:
            return Outcome(begun, time.perf_counter(), error=f"no end within {benchmark.timeout:g} s")

    return send


async def _make_prompts(benchmark: ServeBenchmark, client: HttpClient, model: str) -> tuple[list[Prompt], list[Prompt]]:
    """Warm-up prompts and measured ones. Random ones are all distinct: warming up must not fill the prefix cache."""
    num_warmup, num_prompts = benchmark.num_warmup, benchmark.num_prompts
    if benchmark.prompts is not None:
        given = read_prompts(benchmark.prompts, benchmark.output_len)
        prompts = [given[index % len(given)] for index in range(num_prompts)]
        return prompts[:1] * num_warmup, prompts
    counter = await token_counter(client, benchmark.endpoint, model)
    prompts = await random_prompts(
        num_warmup + num_prompts, benchmark.input_len, benchmark.output_len, benchmark.seed, counter
    )
    return prompts[:num_warmup], prompts[num_warmup:]


class _TokenCount(msgspec.Struct):
    count: int


async def token_counter(client: HttpClient, endpoint: Endpoint, model: str) -> TokenCounter | None:
    """Counts the tokens of a prompt as the server does, through vLLM's /tokenize; None where there is none."""

    async def count(text: str) -> int:
        body = msgspec.json.encode({"model": model} | prompt_member(endpoint, text))
        reply = await client.post("/tokenize", body)
        if reply.status != 200:
            raise ValueError(f"/tokenize says HTTP {reply.status}: {error_message(decode_json(reply.body))}")
        return msgspec.json.decode(reply.body, type=_TokenCount).count

    try:
        await count("the")
    except ValueError:
        return None
    return count


def _ignore(_: Outcome) -> None:
    """For callers that show no progress."""
