"""From the fields of a body to SamplingParams; what is out of range or not supported yet is refused by name."""

from collections.abc import Iterable

import msgspec

from pelton.errors import RequestError
from pelton.http.openai.requests import ChatBody, CompletionBody, GenerationBody
from pelton.types import MAX_LOGPROBS, JsonObject, SamplingDefaults, SamplingParams

MAX_STOP_STRING_LENGTH = 4096
MAX_LOGIT_BIAS = 100.0
MAX_STOP_TOKENS = 1024

_SAME_NAME = (
    *(
        "n",
        "prompt_logprobs",
        "min_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
    ),
    *("repetition_penalty", "seed", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens"),
)


def completion_params(body: CompletionBody, *, vocab_size: int, defaults: SamplingDefaults) -> SamplingParams:
    """Check everything about a completion that does not need its prompt.

    Args:
        defaults: by the fields of SamplingParams, for those that the body leaves open.

    Raises:
        RequestError: names the field; nothing is ever ignored that would have had an effect.
    """
    _refuse_unsupported(body)
    if body.suffix:
        raise _unsupported("suffix")
    if body.prompt_embeds:
        raise _unsupported("prompt_embeds")
    _check_max_tokens("max_tokens", body.max_tokens, minimum=0 if body.echo else 1)
    params = _sampling_params(body, body.max_tokens, body.logprobs, vocab_size, defaults)
    if not body.echo or params.logprobs is None:
        return params
    return msgspec.structs.replace(params, prompt_logprobs=max(params.logprobs, params.prompt_logprobs or 0))


def chat_params(body: ChatBody, *, vocab_size: int, defaults: SamplingDefaults) -> SamplingParams:
    """Check everything about a chat completion that does not need its messages; see completion_params."""
    _refuse_unsupported(body)
    if body.echo:
        raise RequestError("echo is for completions: a chat's prompt is no part of its answer", param="echo")
    if body.modalities not in (None, [], ["text"]):
        raise _unsupported("modalities")
    _check_max_tokens("max_tokens", body.max_tokens, minimum=1)
    _check_max_tokens("max_completion_tokens", body.max_completion_tokens, minimum=1)
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    return _sampling_params(body, max_tokens, _chat_logprobs(body), vocab_size, defaults)


def _chat_logprobs(body: ChatBody) -> int | None:
    top = body.top_logprobs
    if top is not None and not 0 <= top <= MAX_LOGPROBS:
        raise RequestError(
            f"top_logprobs must be at least 0 and at most {MAX_LOGPROBS}, got {top}", param="top_logprobs"
        )
    if top and not body.logprobs:
        raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
    return (top or 0) if body.logprobs else None


def _sampling_params(
    body: GenerationBody,
    max_tokens: int | None,
    logprobs: int | None,
    vocab_size: int,
    defaults: SamplingDefaults,
) -> SamplingParams:
    given = {name: value for name in _SAME_NAME if (value := getattr(body, name)) is not None}
    if max_tokens is not None:
        given["max_tokens"] = max_tokens
    num_choices = given.pop("n", 1)
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    if any(len(string) > MAX_STOP_STRING_LENGTH for string in stop):
        raise RequestError(f"stop: a string is longer than {MAX_STOP_STRING_LENGTH} characters", param="stop")
    _check_stream_options(body)
    check_labels(body)
    _check_num_tokens("stop_token_ids", body.stop_token_ids, MAX_STOP_TOKENS)
    _check_num_tokens("allowed_token_ids", body.allowed_token_ids, vocab_size)
    check_in_vocabulary("stop_token_ids", body.stop_token_ids or (), vocab_size)
    allowed = body.allowed_token_ids
    if allowed is not None:
        check_in_vocabulary("allowed_token_ids", allowed, vocab_size)
    params = SamplingParams(
        logprobs=logprobs,
        stop=stop,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        logit_bias=_logit_bias(body.logit_bias, vocab_size),
        allowed_token_ids=None if allowed is None else tuple(allowed),
        **(_open_defaults(body, defaults) | given),
    )
    if body.use_beam_search:  # it does not sample, so what it finds is more than one greedy choice
        return msgspec.structs.replace(params, n=num_choices, temperature=1.0, top_k=0)
    if body.best_of is not None and body.best_of != num_choices:
        raise RequestError("best_of must be n, or the width of a beam with use_beam_search: true", param="best_of")
    return params if num_choices == 1 else msgspec.structs.replace(params, n=num_choices)


def _open_defaults(body: GenerationBody, defaults: SamplingDefaults) -> JsonObject:
    """What holds where the body says nothing. Of these, a beam takes the length alone: it does not sample."""
    if body.use_beam_search:
        return {"max_tokens": defaults.get("max_tokens")}
    return {"max_tokens": None, **defaults}


def _check_max_tokens(name: str, value: int | None, *, minimum: int) -> None:
    """What is above the context length is refused later: with the prompt's length, which the client needs to know."""
    if value is not None and value >= 2**31:
        raise RequestError(f"{name} is too large: {value}", param=name)
    if value is not None and value < minimum:
        only_echo = "" if minimum == 0 or value < 0 else " (0 only with echo)"
        raise RequestError(f"{name} must be at least {minimum}{only_echo}, got {value}", param=name)
    if value is not None and value >= 2**31:
        raise RequestError(f"{name} is too large: {value}", param=name)


def _check_stream_options(body: GenerationBody) -> None:
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options is for streams: set stream to true", param="stream_options")


def check_labels(body: GenerationBody) -> None:
    if body.cache_salt == "":
        raise RequestError("cache_salt must not be empty; leave it out to share the cache", param="cache_salt")
    if body.priority is not None and not -(2**31) <= body.priority < 2**31:
        raise RequestError(f"priority must fit into 32 bits, got {body.priority}", param="priority")
    if body.request_id is not None and not 0 < len(body.request_id) <= 256:
        raise RequestError("request_id must have 1 to 256 characters", param="request_id")


def _logit_bias(given: dict[str, float] | None, vocab_size: int) -> dict[int, float] | None:
    """Keys as token ids of the vocabulary, values clamped to +-100."""
    if not given:
        return None
    biases: dict[int, float] = {}
    outside: list[str] = []
    for key, value in given.items():
        if not key.removeprefix("-").isdecimal() or not key.isascii():
            raise RequestError(f"logit_bias: the key {key[:50]!r} is not a token id", param="logit_bias")
        if len(key) > 20 or not 0 <= int(key) < vocab_size:
            outside.append(key[:20])
            continue
        biases[int(key)] = max(-MAX_LOGIT_BIAS, min(MAX_LOGIT_BIAS, value))
    if outside:
        raise _outside_vocabulary("logit_bias", outside, vocab_size)
    return biases


def _check_num_tokens(param: str, token_ids: list[int] | None, most: int) -> None:
    if token_ids is not None and len(token_ids) > most:
        raise RequestError(f"{param}: at most {most} token ids, got {len(token_ids)}", param=param)


def check_in_vocabulary(param: str, token_ids: Iterable[int], vocab_size: int) -> None:
    """RequestError naming the ids that are no tokens."""
    outside = [str(token_id) for token_id in token_ids if not 0 <= token_id < vocab_size]
    if outside:
        raise _outside_vocabulary(param, outside, vocab_size)


def _outside_vocabulary(param: str, token_ids: list[str], vocab_size: int) -> RequestError:
    shown = ", ".join(token_ids[:5]) + (", ..." if len(token_ids) > 5 else "")
    return RequestError(
        f"{param}: token id {shown} is out of vocabulary; the vocabulary size is {vocab_size}", param=param
    )


def _unsupported(param: str) -> RequestError:
    return RequestError(f"{param} is not supported yet", param=param)


def _refuse_unsupported(body: GenerationBody) -> None:
    if body.logits_processors:
        raise RequestError("logits_processors: a client's code is not run here", param="logits_processors")
    if body.prompt_logprobs is not None and body.stream:
        raise RequestError("prompt_logprobs cannot be streamed: set stream to false", param="prompt_logprobs")
