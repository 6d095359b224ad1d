"""Running the choices of one request: P prompts times n samples, merged into one stream."""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from http import HTTPStatus

import msgspec
from starlette.requests import Request

from pelton.errors import RequestError
from pelton.http.gate import ARRIVAL, TENANT
from pelton.http.metrics import ChoiceTimer
from pelton.http.openai.logprobs import AlignedLogprobs, TextPosition, TokenNames
from pelton.http.openai.prompts import Prompt
from pelton.http.openai.requests import GenerationBody
from pelton.http.openai.responses import PromptTokensDetails, StopReason, Usage
from pelton.http.service import Service
from pelton.types import Delta, FinishReason, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One request, checked and tokenized. `arrival` is in seconds of time.perf_counter, `created` in Unix time."""

    id: str
    created: int
    arrival: float
    model: str
    prompts: Sequence[Prompt]
    params: SamplingParams
    priority: int
    salt: str
    names: TokenNames
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool
    echo: bool = False

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(prompt.token_ids) for prompt in self.prompts)


class Choice:
    """What has come of one choice so far. Choice i of prompt p has index p * n + i."""

    __slots__ = (
        *("finish_reason", "index", "is_first_of_prompt", "logprobs", "num_cached_tokens", "prompt", "positions"),
        *("stop_reason", "texts", "timer", "token_ids"),
    )

    def __init__(self, index: int, prompt: Prompt, timer: ChoiceTimer, *, is_first_of_prompt: bool) -> None:
        self.index = index
        self.prompt = prompt
        self.timer = timer
        self.is_first_of_prompt = is_first_of_prompt
        self.logprobs: AlignedLogprobs | None = None
        self.texts: list[str] = []
        self.token_ids: list[int] = []
        self.positions: list[TextPosition] = []
        self.finish_reason: FinishReason | None = None
        self.stop_reason: StopReason = None
        self.num_cached_tokens = 0

    @property
    def text(self) -> str:
        return "".join(self.texts)


class Progress(msgspec.Struct, frozen=True):
    """One delta of one choice, with the logprobs whose text is out."""

    choice: Choice
    delta: Delta
    positions: list[TextPosition]
    is_first: bool


def generation(
    service: Service,
    request: Request,
    body: GenerationBody,
    *,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    prefix: str,
) -> Generation:
    """Join what the routes of completions and chat have found out. `prefix` starts the id, e.g. "cmpl-"."""
    options = body.stream_options
    request_id = body.request_id or request.headers.get("x-request-id") or uuid.uuid4().hex
    return Generation(
        id=prefix + request_id[:256],
        created=int(time.time()),
        arrival=request.scope[ARRIVAL],
        model=body.model or service.model,
        prompts=prompts,
        params=params,
        priority=body.priority or 0,
        # A cache is shared inside one tenant only: neither part can be chosen to look like another's.
        salt=f"{request.scope[TENANT]}:{body.cache_salt or ''}",
        names=TokenNames(service.engine.tokenizer, as_ids=bool(body.return_tokens_as_token_ids)),
        include_usage=options is not None and bool(options.include_usage),
        continuous_usage=options is not None and bool(options.continuous_usage_stats),
        return_token_ids=bool(body.return_token_ids),
    )


def refuse_when_full(service: Service) -> None:
    """RequestError 429 where max_queue requests wait already.

    The engine's own count lags by a step or more; in a burst, what this process has handed over counts as well.
    """
    config = service.engine.config
    waiting = max(service.engine.stats.num_waiting, service.lifecycle.num_choices - config.max_num_seqs)
    if waiting >= config.max_queue:
        raise RequestError("Too many waiting requests; try again later", status=HTTPStatus.TOO_MANY_REQUESTS)


def params_for_prompt(params: SamplingParams, num_prompt_tokens: int, max_model_len: int) -> SamplingParams:
    """With max_tokens clamped to what the context leaves; RequestError if min_tokens does not fit."""
    room = max_model_len - num_prompt_tokens
    return msgspec.structs.replace(
        params, max_tokens=room if params.max_tokens is None else min(params.max_tokens, room)
    )


async def run(service: Service, job: Generation) -> AsyncGenerator[Progress, None]:
    """Every delta of every choice, as they come. Closing this aborts what still runs.

    Raises:
        RequestError: the queue is full; or as EngineClient.generate, and then the other choices are aborted.
        EngineDeadError: as EngineClient.generate.
    """
    refuse_when_full(service)  # again: others may have come while this one's prompt was tokenized
    choices = _choices(service, job)
    per_prompt = [params_for_prompt(job.params, len(prompt.token_ids), service.max_model_len) for prompt in job.prompts]
    outcome: FinishReason = "abort"
    service.lifecycle.num_choices += len(choices)
    try:
        streams = [_stream(service, job, choice, per_prompt[choice.index // job.params.n]) for choice in choices]
        async with aclosing(_merge(streams)) as merged:
            async for index, delta in merged:
                yield _take(service, choices[index], delta)
    except Exception:
        outcome = "error"
        raise
    finally:
        service.lifecycle.num_choices -= len(choices)
        for choice in choices:
            if choice.finish_reason is None:
                choice.timer.finish(outcome, time.perf_counter())


async def collect(service: Service, job: Generation) -> tuple[list[Choice], Usage]:
    """Every choice when all are complete, by index. Raises as `run`."""
    usage = UsageCounter(job)
    choices: dict[int, Choice] = {}
    async with aclosing(run(service, job)) as progresses:
        async for progress in progresses:
            usage.add(progress)
            choices[progress.choice.index] = progress.choice
    return [choices[index] for index in sorted(choices)], usage.usage()


def _choices(service: Service, job: Generation) -> list[Choice]:
    choices: list[Choice] = []
    for prompt in job.prompts:
        for sample in range(job.params.n):
            timer = service.metrics.timer(job.arrival, len(prompt.token_ids))
            choice = Choice(len(choices), prompt, timer, is_first_of_prompt=sample == 0)
            if job.params.logprobs is not None:
                choice.logprobs = AlignedLogprobs(service.engine.tokenizer, job.params)
            choices.append(choice)
    return choices


def _stream(service: Service, job: Generation, choice: Choice, params: SamplingParams) -> AsyncGenerator[Delta, None]:
    if params.max_tokens == 0:
        return _nothing()
    return service.engine.generate(
        choice.prompt.token_ids,
        params.for_choice(choice.index % job.params.n),
        priority=job.priority,
        salt=job.salt,
    )


async def _nothing() -> AsyncGenerator[Delta, None]:
    """What echo with max_tokens 0 generates."""
    yield Delta(finish_reason="length")


def _take(service: Service, choice: Choice, delta: Delta) -> Progress:
    now = time.perf_counter()
    is_first = not choice.token_ids and not choice.texts
    if is_first and choice.is_first_of_prompt:
        service.metrics.num_prompt_tokens += len(choice.prompt.token_ids)
    choice.texts.append(delta.text)
    choice.num_cached_tokens = max(choice.num_cached_tokens, delta.num_cached_tokens)
    if delta.token_ids:
        choice.token_ids += delta.token_ids
        choice.timer.observe_tokens(len(delta.token_ids), now)
    positions = choice.logprobs.push(delta) if choice.logprobs else []
    choice.positions += positions
    if delta.finish_reason is not None:
        choice.finish_reason = delta.finish_reason
        choice.stop_reason = delta.stop_reason
        choice.timer.finish(delta.finish_reason, now)
    return Progress(choice, delta, positions, is_first)


async def _merge(streams: Sequence[AsyncGenerator[Delta, None]]) -> AsyncGenerator[tuple[int, Delta], None]:
    """(position of the stream, delta) as they come. The first error ends all."""
    if len(streams) == 1:  # nothing to merge, no task and queue on the way
        async with aclosing(streams[0]) as only:
            async for delta in only:
                yield 0, delta
        return
    # A bounded queue: a slow client holds the streams back instead of filling memory.
    queue: asyncio.Queue[tuple[int, Delta | Exception | None]] = asyncio.Queue(maxsize=len(streams))
    tasks = [asyncio.create_task(_pump(index, stream, queue)) for index, stream in enumerate(streams)]
    num_open = len(tasks)
    try:
        while num_open:
            index, item = await queue.get()
            if item is None:
                num_open -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield index, item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(
    index: int, stream: AsyncGenerator[Delta, None], queue: asyncio.Queue[tuple[int, Delta | Exception | None]]
) -> None:
    try:
        async with aclosing(stream) as deltas:
            async for delta in deltas:
                await queue.put((index, delta))
    except Exception as error:  # noqa: BLE001 (the consumer raises it)
        await queue.put((index, error))
    else:
        await queue.put((index, None))


class UsageCounter:
    """Prompt tokens count once a prompt, completion tokens are summed over choices."""

    def __init__(self, job: Generation) -> None:
        self._num_prompt_tokens = job.num_prompt_tokens
        self._num_completion_tokens = 0
        self._num_cached_tokens = 0

    def add(self, progress: Progress) -> None:
        self._num_completion_tokens += len(progress.delta.token_ids)
        if progress.choice.is_first_of_prompt and progress.delta.finish_reason is not None:
            self._num_cached_tokens += progress.choice.num_cached_tokens

    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self._num_prompt_tokens,
            completion_tokens=self._num_completion_tokens,
            total_tokens=self._num_prompt_tokens + self._num_completion_tokens,
            prompt_tokens_details=PromptTokensDetails(self._num_cached_tokens),
        )
