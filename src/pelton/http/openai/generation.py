"""Running the choices of one request: P prompts times n samples."""

import asyncio
import functools
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus

import msgspec
from starlette.requests import Request

from pelton.engine.beam_search import BeamSettings
from pelton.errors import RequestError
from pelton.http.gate import ARRIVAL, TENANT
from pelton.http.limits import DEADLINE, SPEND, Deadline
from pelton.http.metrics import ChoiceTimer
from pelton.http.openai.beams import beam_settings, start_search
from pelton.http.openai.logprobs import AlignedLogprobs, TextPosition, TokenNames
from pelton.http.openai.prompt_logprobs import check_num_entries
from pelton.http.openai.prompts import Prompt
from pelton.http.openai.requests import ChatBody, GenerationBody
from pelton.http.openai.responses import PromptTokensDetails, StopReason, Usage
from pelton.http.service import Service
from pelton.types import Delta, FinishReason, SamplingParams, TokenLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One request, checked and tokenized. `arrival` is in seconds of time.perf_counter, `created` in Unix time.

    `prompt_logprobs` is how many to show at each position as vLLM does; `params` may ask for more, to echo them.
    `spend` takes the tokens that it has cost.
    """

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
    deadline: Deadline | None
    spend: Callable[[int], None]
    streamed: bool = False
    echo: bool = False
    prompt_logprobs: int | None = None
    beams: BeamSettings | None = None

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(prompt.token_ids) for prompt in self.prompts)


class Choice:
    """One choice under way. Choice i of prompt p has index p * n + i. `has_begun` turns true after its first delta.

    `prompt_logprobs`, of all prompt tokens but the first, are complete by then, and shared with the other choices of
    the prompt unless the answer is streamed.
    """

    __slots__ = (
        *("abort", "finish_reason", "has_begun", "index", "is_first_of_prompt", "logprobs", "prompt"),
        *("prompt_logprobs", "stop_reason", "timer"),
    )

    def __init__(
        self,
        index: int,
        prompt: Prompt,
        timer: ChoiceTimer,
        prompt_logprobs: list[TokenLogprobs],
        *,
        is_first_of_prompt: bool,
    ) -> None:
        self.index = index
        self.prompt = prompt
        self.timer = timer
        self.prompt_logprobs = prompt_logprobs
        self.is_first_of_prompt = is_first_of_prompt
        self.has_begun = False
        self.logprobs: AlignedLogprobs | None = None
        self.abort: Callable[[], object] | None = None
        self.finish_reason: FinishReason | None = None
        self.stop_reason: StopReason = None


# Takes a delta of a choice, with the logprobs whose text is out.
OnDelta = Callable[[Choice, Delta, Sequence[TextPosition]], None]
OnEnd = Callable[[Exception | None], None]


def generation(
    service: Service,
    request: Request,
    body: GenerationBody,
    *,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    prefix: str,
) -> Generation:
    """Join what the routes of completions and chat have found out. `prefix` starts the id, e.g. "cmpl-".

    Raises:
        RequestError: max_tokens is more than the context can hold, or too many entries are asked for.
    """
    _check_max_tokens(body, params.max_tokens, prompts, service.max_model_len)
    check_num_entries(prompts, params, streamed=bool(body.stream))
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
        streamed=bool(body.stream),
        prompt_logprobs=body.prompt_logprobs,
        beams=beam_settings(body, params, service.engine.info.eos_token_ids),
        deadline=request.scope[DEADLINE],
        spend=request.scope[SPEND],
    )


def _check_max_tokens(
    body: GenerationBody, max_tokens: int | None, prompts: Sequence[Prompt], max_model_len: int
) -> None:
    """Refuse what no prompt leaves room for; less is clamped, see params_for_prompt."""
    if max_tokens is None or max_tokens <= max_model_len:
        return
    num_prompt_tokens = max(len(prompt.token_ids) for prompt in prompts)
    is_chat_name = isinstance(body, ChatBody) and body.max_completion_tokens is not None
    name = "max_completion_tokens" if is_chat_name else "max_tokens"
    raise RequestError(
        f"{name} is too large: {max_tokens}. This model's maximum context length is {max_model_len} tokens, and "
        f"the prompt has {num_prompt_tokens}: at most {max_model_len - num_prompt_tokens} are left for the output.",
        param=name,
    )


def refuse_when_full(service: Service) -> None:
    """RequestError 429 where max_queue requests wait already.

    The engine's own count lags by a step or more; in a burst, what this process has handed over counts as well.
    """
    config = service.engine.config
    waiting = max(service.engine.stats.num_waiting, service.lifecycle.num_choices - config.max_num_seqs)
    if waiting >= config.max_queue:
        raise RequestError(
            "Too many waiting requests; try again later",
            status=HTTPStatus.TOO_MANY_REQUESTS,
            retry_after=service.metrics.seconds_until_ended(waiting - config.max_queue + 1),
        )


def params_for_prompt(params: SamplingParams, num_prompt_tokens: int, max_model_len: int) -> SamplingParams:
    """With max_tokens clamped to what the context leaves; RequestError if min_tokens does not fit."""
    room = max_model_len - num_prompt_tokens
    return msgspec.structs.replace(
        params, max_tokens=room if params.max_tokens is None else min(params.max_tokens, room)
    )


class Run:
    """Every choice of a job under way. `close` must be called when it has ended, or to end it early.

    At the job's deadline it ends by itself, with an error of status 408.

    `on_delta` gets the deltas as they come, all from the event loop. `on_end` is called once: after the last delta of
    the last choice, or with the first error (RequestError or EngineDeadError, as EngineClient.submit gives them, or
    what `on_delta` raised), at which the other choices are aborted.

    Raises:
        RequestError: the queue is full.
    """

    def __init__(self, service: Service, job: Generation, on_delta: OnDelta, on_end: OnEnd) -> None:
        refuse_when_full(service)  # again: others may have come while this one's prompt was tokenized
        self._service = service
        self._on_delta = on_delta
        self._on_end = on_end
        self._spend = job.spend
        self._deadline = _at_deadline(job.deadline, self._expire)
        self._choices = _choices(service, job)
        self._num_open = len(self._choices)
        self._outcome: FinishReason = "abort"
        service.lifecycle.num_choices += len(self._choices)
        try:
            for choice in self._choices:
                if job.beams is None:
                    self._submit(job, choice)
                elif choice.is_first_of_prompt:
                    self._search(job, job.beams, self._choices[choice.index : choice.index + job.params.n])
        except Exception as error:  # noqa: BLE001 (on_end passes it on)
            self._fail(error)

    def close(self) -> None:
        """Abort what still runs."""
        self._service.lifecycle.num_choices -= len(self._choices)
        self._num_open = 0
        if self._deadline is not None:
            self._deadline.cancel()
        now = time.perf_counter()
        for choice in self._choices:
            if choice.finish_reason is None:
                choice.timer.finish(self._outcome, now)
                if choice.abort is not None:
                    choice.abort()

    def _submit(self, job: Generation, choice: Choice) -> None:
        params = params_for_prompt(job.params, len(choice.prompt.token_ids), self._service.max_model_len)
        sink = functools.partial(self._take, choice)
        if params.prompt_logprobs is not None and not (choice.is_first_of_prompt or job.streamed):
            params = msgspec.structs.replace(params, prompt_logprobs=None)
        if params.max_tokens == 0 and params.prompt_logprobs is None and params.pooling is None:  # the prompt echoed
            asyncio.get_running_loop().call_soon(sink, Delta(finish_reason="length"))
            return
        choice.abort = self._service.engine.submit(
            choice.prompt.token_ids,
            params.for_choice(choice.index % job.params.n),
            sink,
            priority=job.priority,
            salt=job.salt,
        )

    def _search(self, job: Generation, beams: BeamSettings, choices: Sequence[Choice]) -> None:
        """The choices of one prompt by beam search."""
        first = choices[0]
        first.abort = start_search(
            self._service.engine,
            first.prompt.token_ids,
            params_for_prompt(job.params, len(first.prompt.token_ids), self._service.max_model_len),
            beams,
            [functools.partial(self._take, choice) for choice in choices],
            priority=job.priority,
            salt=job.salt,
        )

    def _take(self, choice: Choice, delta: Delta | Exception) -> None:
        if not self._num_open:  # closed, or failed by another choice
            return
        if isinstance(delta, Exception):
            self._fail(delta)
            return
        try:
            self._observe(choice, delta)
        except Exception as error:  # noqa: BLE001 (it ends this request; others share the caller)
            self._fail(error)
            return
        if delta.finish_reason is not None:
            self._num_open -= 1
            if not self._num_open:
                self._on_end(None)

    def _observe(self, choice: Choice, delta: Delta) -> None:
        if delta.prompt_logprobs is not None:
            choice.prompt_logprobs += delta.prompt_logprobs
            if not delta.token_ids and delta.finish_reason is None:
                return  # the rest of them is on its way
        now = time.perf_counter()
        if choice.is_first_of_prompt and not choice.has_begun:
            self._service.metrics.num_prompt_tokens += len(choice.prompt.token_ids)
            self._spend(len(choice.prompt.token_ids))
        if delta.token_ids:
            self._spend(len(delta.token_ids))
            choice.timer.observe_tokens(len(delta.token_ids), now)
        if delta.finish_reason is not None:
            choice.finish_reason = delta.finish_reason
            choice.stop_reason = delta.stop_reason
            choice.timer.finish(delta.finish_reason, now)
        self._on_delta(choice, delta, choice.logprobs.push(delta) if choice.logprobs else ())
        choice.has_begun = True

    def _expire(self, deadline: Deadline) -> None:
        if self._num_open:
            self._fail(deadline.error(), "abort")

    def _fail(self, error: Exception, outcome: FinishReason = "error") -> None:
        self._num_open = 0
        self._outcome = outcome
        for choice in self._choices:
            if choice.abort is not None:
                choice.abort()
        self._on_end(error)


def _at_deadline(deadline: Deadline | None, expire: Callable[[Deadline], None]) -> asyncio.TimerHandle | None:
    if deadline is None:
        return None
    deadline.take_over()
    return asyncio.get_running_loop().call_at(deadline.at, expire, deadline)


class Answer:
    """Collects the whole of one choice."""

    __slots__ = ("choice", "positions", "texts", "token_ids")

    def __init__(self, choice: Choice) -> None:
        self.choice = choice
        self.texts: list[str] = []
        self.token_ids: list[int] = []
        self.positions: list[TextPosition] = []

    @property
    def text(self) -> str:
        return "".join(self.texts)


async def collect(service: Service, job: Generation) -> tuple[list[Answer], Usage]:
    """Every choice when all are complete, by index. Raises as `Run`, and what it gives to `on_end`."""
    usage = UsageCounter(job)
    answers: dict[int, Answer] = {}
    ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def on_delta(choice: Choice, delta: Delta, positions: Sequence[TextPosition]) -> None:
        usage.add(choice, delta)
        answer = answers.get(choice.index)
        if answer is None:
            answer = answers[choice.index] = Answer(choice)
        answer.texts.append(delta.text)
        answer.token_ids += delta.token_ids
        answer.positions += positions

    def on_end(error: Exception | None) -> None:
        if not ended.done():
            ended.set_result(error)

    run = Run(service, job, on_delta, on_end)
    try:
        error = await ended
    finally:
        run.close()
    if error is not None:
        raise error
    return [answers[index] for index in sorted(answers)], usage.usage()


def _choices(service: Service, job: Generation) -> list[Choice]:
    choices: list[Choice] = []
    for prompt in job.prompts:
        shared: list[TokenLogprobs] = []
        for sample in range(job.params.n):
            entries = list[TokenLogprobs]() if job.streamed else shared
            timer = service.metrics.timer(job.arrival, len(prompt.token_ids))
            choice = Choice(len(choices), prompt, timer, entries, is_first_of_prompt=sample == 0)
            if job.params.logprobs is not None:
                choice.logprobs = AlignedLogprobs(service.engine.tokenizer, job.params, keep_all=job.echo)
            choices.append(choice)
    return choices


class UsageCounter:
    """Prompt tokens count once a prompt, completion tokens are summed over choices."""

    def __init__(self, job: Generation) -> None:
        self._num_prompt_tokens = job.num_prompt_tokens
        self._num_completion_tokens = 0
        self._num_cached_tokens = 0

    def add(self, choice: Choice, delta: Delta) -> None:
        self._num_completion_tokens += len(delta.token_ids)
        if choice.is_first_of_prompt and delta.finish_reason is not None:
            self._num_cached_tokens += delta.num_cached_tokens

    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self._num_prompt_tokens,
            completion_tokens=self._num_completion_tokens,
            total_tokens=self._num_prompt_tokens + self._num_completion_tokens,
            prompt_tokens_details=PromptTokensDetails(self._num_cached_tokens),
        )
