"""What scheduler, runner, engine and server say to each other: plain integers, strings and floats."""

import math
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from pelton.errors import RequestError

FinishReason = Literal["stop", "length", "abort", "error"]
Pooling = Literal["last", "mean"]

MAX_CHOICES = 128
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 4
_INT64 = 2**63


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How to choose tokens and when to stop. Out-of-range values raise RequestError naming the field.

    Fields have the names and meanings of the OpenAI API and of vLLM's extensions to it.
    `max_tokens=None` means "up to the end of the context". `top_k` is off at 0 and -1.
    `seed=None` draws a fresh seed per request; with a seed, output depends on (seed, position) only.
    `shown_special_ids` are in the text although skip_special_tokens hides the others: marks that a parser must see.
    `logprobs=k` reports the k most likely tokens beside each sampled one, `prompt_logprobs=k` those beside each prompt
    token but the first. `bad_words_ids` are sequences of tokens that the output must not hold. `max_tokens=0` computes
    the prompt and nothing more. `grammar` is what the output must obey, as llguidance reads it: Lark text or the JSON
    that stands for several grammars, made by `pelton.structured`. The output ends with the grammar, `ignore_eos` or
    not; that only keeps it from ending earlier, where the grammar could go on.
    `pooling` asks for a vector in the place of an output: the hidden state after the last norm, of the prompt's last
    token or the mean over all, at length 1. It goes with `max_tokens=0`.
    """

    n: int = 1
    max_tokens: int | None = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    shown_special_ids: tuple[int, ...] = ()
    grammar: str | None = None
    pooling: Pooling | None = None

    def __post_init__(self) -> None:
        self._check_number("temperature", 0.0, 2.0)
        self._check_number("top_p", 0.0, 1.0, open_below=True)
        self._check_number("min_p", 0.0, 1.0)
        self._check_number("presence_penalty", -2.0, 2.0)
        self._check_number("frequency_penalty", -2.0, 2.0)
        self._check_number("repetition_penalty", 0.0, math.inf, open_below=True)
        self._check_number("top_k", -1, 2**31 - 1)
        self._check_number("n", 1, MAX_CHOICES)
        if self.greedy and self.n > 1:
            raise RequestError("n must be 1 when sampling is greedy (temperature 0 or top_k 1)", param="n")
        if self.max_tokens is not None:
            self._check_number("max_tokens", 0, _INT64 - 1)  # what is above the context is refused with its length
        self._check_number("min_tokens", 0, 2**31 - 1 if self.max_tokens is None else self.max_tokens)
        if self.seed is not None:
            self._check_number("seed", -_INT64, _INT64 - 1)
        if self.logprobs is not None:
            self._check_number("logprobs", 0, MAX_LOGPROBS)
        if self.prompt_logprobs is not None:
            self._check_number("prompt_logprobs", 0, MAX_LOGPROBS)
        if () in self.bad_words_ids:
            raise RequestError("bad_words: an empty word would rule out every token; leave it out", param="bad_words")
        if len(self.stop) > MAX_STOP_STRINGS:
            raise RequestError(f"stop: at most {MAX_STOP_STRINGS} strings, got {len(self.stop)}", param="stop")
        if "" in self.stop:
            raise RequestError("stop: an empty string would stop at once; leave it out", param="stop")
        if self.pooling is not None and self.max_tokens != 0:
            raise RequestError("pooling gives no output: max_tokens must be 0", param="max_tokens")
        for token, bias in (self.logit_bias or {}).items():
            if not math.isfinite(bias):
                raise RequestError(f"logit_bias: the value of token {token} must be finite", param="logit_bias")
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise RequestError(
                "allowed_token_ids: an empty list allows no token; leave it out", param="allowed_token_ids"
            )

    @property
    def greedy(self) -> bool:
        """Temperatures too small to change an argmax count as 0."""
        return self.temperature < 1e-5 or self.top_k == 1

    def for_choice(self, index: int) -> "SamplingParams":
        """The parameters of choice `index` of n: one sample, its own seed."""
        seed = None if self.seed is None else (self.seed + index + _INT64) % (2 * _INT64) - _INT64
        return msgspec.structs.replace(self, n=1, seed=seed)

    def _check_number(self, name: str, low: float, high: float, *, open_below: bool = False) -> None:
        value = getattr(self, name)
        inside = (low < value if open_below else low <= value) and value <= high  # False for NaN
        if not inside:
            below = f"above {low}" if open_below else f"at least {low}"
            raise RequestError(f"{name} must be {below} and at most {high}, got {value}", param=name)


class NewRequest(msgspec.Struct, frozen=True, array_like=True):
    """What a runner must know of a request before its first row: sent once, with the plan that first schedules it."""

    request_id: int
    prompt_ids: tuple[int, ...]
    params: SamplingParams


class Row(msgspec.Struct, frozen=True, array_like=True):
    """One request's share of a step: compute positions [start, start + num_tokens).

    `pages` covers at least start + num_tokens positions. With `sample`, the runner samples the token of position
    start + num_tokens; the runner itself keeps the tokens that it sampled.
    """

    request_id: int
    start: int
    num_tokens: int
    pages: tuple[int, ...]
    sample: bool


class ForcedTokens(msgspec.Struct, frozen=True, array_like=True):
    """Tokens that a grammar appended to a request, from `position` on: no runner sampled them."""

    request_id: int
    position: int
    token_ids: tuple[int, ...]


class Plan(msgspec.Struct, frozen=True, array_like=True):
    """One step as plain integers. Rank 0 makes it, every rank runs it.

    Rows stand in execution order. `ended` lists requests whose runner state goes before the step; `new` comes with
    the first row of its request, after that. `forced` is of requests that the runner knows, with a row or without.
    """

    rows: tuple[Row, ...]
    new: tuple[NewRequest, ...] = ()
    ended: tuple[int, ...] = ()
    forced: tuple[ForcedTokens, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(row.num_tokens for row in self.rows)


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Natural-log probability of a token, before temperature and filters, and of the most likely ones in its place."""

    token_id: int
    logprob: float
    rank: int  # 1 = most likely
    top: tuple[tuple[int, float], ...]  # (token id, logprob), most likely first


class Sampled(msgspec.Struct, frozen=True, array_like=True):
    """The runner's answer for one row, or the error that ends that request alone.

    `token_id` is 0 and means nothing in a row that does not sample. `prompt_logprobs` are of the prompt tokens that the
    row's positions predict, where the request asked for them: each prompt token but the first comes once, in order.
    `error_status` is the HTTP status of the error: 400 where the request's own parameters are the cause.
    `forced_ids` are the tokens that must follow this one, as the engine found by the request's grammar.
    `vector` is that of a request with `pooling`, float32 in the machine's order, in the row that completes its prompt.
    """

    token_id: int
    logprobs: TokenLogprobs | None = None
    error: str | None = None
    error_status: int = 500
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    forced_ids: tuple[int, ...] = ()
    vector: bytes | None = None


class Output(msgspec.Struct, frozen=True, array_like=True):
    """What one step gave one request. The last one of a request has a finish_reason.

    `num_cached_tokens` counts prompt tokens served from the prefix cache. `error` goes with finish_reason "error", and
    with its HTTP status: 400 for what the request itself caused.
    """

    request_id: int
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None  # the stop token's id; None for end-of-sequence
    num_cached_tokens: int = 0
    error: str | None = None
    error_status: int = 500
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    vector: bytes | None = None


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """What a client of the engine sees of one choice: the text that became certain, and the tokens behind it.

    `text` may lag behind `token_ids` (a partial character, a possible stop string) and is complete with the last delta,
    the one that has a finish_reason. `logprobs` are aligned with `token_ids`. `stop_reason` is the stop string or stop
    token id, None for end-of-sequence. `prompt_logprobs` come in pieces, none later than the first token.
    `vector` is what `pooling` asked for, float32 in the machine's order.
    A failed request raises instead: finish_reason is never "error" here.
    """

    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_cached_tokens: int = 0
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    vector: bytes | None = None


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """Gauges of now and counters since the engine started. Tokens and pages are counts, times are seconds."""

    num_running: int = 0
    num_waiting: int = 0
    num_pages: int = 0
    num_used_pages: int = 0  # referenced by a live request
    page_size: int = 0
    num_used_slots: int = 0  # slots of the used pages that hold a computed token
    num_steps: int = 0
    num_preemptions: int = 0
    num_prompt_tokens: int = 0
    num_generation_tokens: int = 0
    prefix_cache_queries: int = 0  # prompt tokens looked up
    prefix_cache_hits: int = 0  # prompt tokens found
    num_aborted: int = 0
    num_finished: dict[str, int] = {}  # by finish_reason

    @property
    def kv_usage(self) -> float:
        """Fraction of the pages in use, 0 to 1."""
        return self.num_used_pages / self.num_pages if self.num_pages else 0.0

    @property
    def kv_waste(self) -> float:
        """Fraction of the allocated slots that hold no token, 0 to 1."""
        allocated = self.num_used_pages * self.page_size
        return 1.0 - self.num_used_slots / allocated if allocated else 0.0


JsonObject = dict[str, Any]
SamplingDefaults = Mapping[str, Any]  # numbers by the fields of SamplingParams, for requests that leave those open
