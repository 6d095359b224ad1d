"""The whole of every choice, and what a request has used."""

import asyncio
from collections.abc import Sequence

from pelton.http.openai.generation import Generation
from pelton.http.openai.logprobs import TextPosition
from pelton.http.openai.responses import PromptTokensDetails, Usage
from pelton.http.openai.run import Choice, Run
from pelton.http.service import Service
from pelton.types import Delta


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
