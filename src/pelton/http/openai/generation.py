"""A request of completions or chat, checked and tokenized: P prompts times n samples."""

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus

from starlette.requests import Request

from pelton.engine.beam_search import BeamSettings
from pelton.errors import RequestError
from pelton.http.gate import ARRIVAL, TENANT
from pelton.http.limits import DEADLINE, SPEND, Deadline
from pelton.http.openai.beams import beam_settings
from pelton.http.openai.logprobs import TokenNames
from pelton.http.openai.prompt_logprobs import check_num_entries
from pelton.http.openai.prompts import Prompt
from pelton.http.openai.requests import ChatBody, GenerationBody
from pelton.http.service import Service
from pelton.types import SamplingParams


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
