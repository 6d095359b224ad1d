"""Running the texts of one request to their vectors."""

import asyncio
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import TypeVar, cast

from starlette.requests import Request

from pelton.errors import RequestError
from pelton.http.openai.answers import UsageCounter
from pelton.http.openai.generation import Generation, generation
from pelton.http.openai.logprobs import TextPosition
from pelton.http.openai.parameters import check_labels
from pelton.http.openai.prompts import Prompt, completion_prompts
from pelton.http.openai.requests import CompletionBody, Integer
from pelton.http.openai.responses import Usage
from pelton.http.openai.run import Choice, Run
from pelton.http.pooling.requests import PoolingBody
from pelton.http.service import Service
from pelton.types import Delta, Pooling, SamplingParams

T = TypeVar("T")


async def pooled_prompts(
    service: Service, body: PoolingBody, texts: str | Sequence[str | Integer | list[Integer]], name: str
) -> list[Prompt]:
    """Texts or ids as prompts; RequestError that names the entry of the field `name` which is empty or too long."""
    completion = _completion(body, texts)
    check_labels(completion)
    return await completion_prompts(service, completion, name)


def pooling_job(
    service: Service, request: Request, body: PoolingBody, prompts: Sequence[Prompt], *, prefix: str
) -> Generation:
    """A job without output, of which each prompt gives a vector."""
    params = SamplingParams(max_tokens=0, pooling=cast("Pooling", service.engine.config.pooling_type))
    return generation(service, request, _completion(body, ""), prompts=prompts, params=params, prefix=prefix)


async def pooled(service: Service, job: Generation, read: Callable[[bytes], T]) -> tuple[list[T], Usage]:
    """What `read` makes of the vector of each prompt (float32 in the machine's order), by index.

    It is called from the event loop as vectors come. Raises as `Run`, and what it gives to `on_end`.
    """
    usage = UsageCounter(job)
    found: dict[int, T] = {}
    ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def on_delta(choice: Choice, delta: Delta, positions: Sequence[TextPosition]) -> None:
        del positions
        usage.add(choice, delta)
        if delta.vector is None:  # a server that drains does not wait for it
            raise RequestError("The server has ended this request", status=HTTPStatus.SERVICE_UNAVAILABLE)
        found[choice.index] = read(delta.vector)

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
    return [found[index] for index in sorted(found)], usage.usage()


def _completion(body: PoolingBody, prompt: str | Sequence[str | Integer | list[Integer]]) -> CompletionBody:
    return CompletionBody(
        prompt=prompt if isinstance(prompt, str) else list(prompt),
        max_tokens=0,
        model=body.model,
        add_special_tokens=body.add_special_tokens,
        truncate_prompt_tokens=body.truncate_prompt_tokens,
        truncation_side=body.truncation_side,
        priority=body.priority,
        cache_salt=body.cache_salt,
        request_id=body.request_id,
    )
