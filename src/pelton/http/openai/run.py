"""Running the choices of one request."""

import asyncio
import functools
import time
from collections.abc import Callable, Sequence

import msgspec

from pelton.engine.beam_search import BeamSettings
from pelton.http.limits import Deadline
from pelton.http.metrics import ChoiceTimer
from pelton.http.openai.beams import start_search
from pelton.http.openai.generation import Generation, refuse_when_full
from pelton.http.openai.logprobs import AlignedLogprobs, TextPosition
from pelton.http.openai.prompts import Prompt
from pelton.http.openai.responses import StopReason
from pelton.http.service import Service
from pelton.types import Delta, FinishReason, SamplingParams, TokenLogprobs


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
