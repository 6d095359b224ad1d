"""Grammars: the matchers of an engine's constrained requests, compiled beside its steps and asked during them."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np

from pelton.errors import RequestError
from pelton.structured.masks import TokenMasks, Words, num_words
from pelton.types import Plan, Sampled, SamplingParams

if TYPE_CHECKING:  # the grammar library and the tokenizer are loaded with the first grammar, not with the engine
    from pelton.structured.matcher import Matcher

logger = logging.getLogger(__name__)

COMPILE_SECONDS = 10.0  # from the request's arrival
MASK_SECONDS = 5.0  # of one mask
_GRACE_SECONDS = 0.1  # that a step waits for masks after its forward pass; late ones sample in the next step
_POLL_SECONDS = 0.005
_NUM_COMPILERS = 2
_COMPILER_NICENESS = 10  # steps come first where there are more threads than cores


class Compiler(Protocol):
    """Makes the matcher of a grammar and fills its first mask, or raises RequestError. Any thread calls it."""

    def matcher(self, grammar: str, words: Words) -> "Matcher": ...


@dataclass(slots=True, eq=False)
class _Constraint:
    """A constrained request: first its matcher is made, then masks are filled one after the other."""

    params: SamplingParams
    future: "Future[Matcher]"
    since: float  # when the compilation or the mask under way was asked for
    words: Words
    matcher: "Matcher | None" = None
    is_filling: bool = False  # words and matcher belong to a mask thread
    is_filled: bool = False  # words are those of the next token
    is_broken: bool = False  # the library raised
    num_output: int = 0

    @property
    def jumps(self) -> bool:
        """Whether forced tokens are appended without a step: not where a step has more to say about each token."""
        params = self.params
        has_say = params.logit_bias or params.bad_words_ids or params.allowed_token_ids is not None
        return params.logprobs is None and not has_say


class Grammars:
    """One thread, the engine's, calls all methods; compiling and masks have threads of their own.

    Args:
        load: makes the compiler; called once, in a compiling thread, when the first grammar comes.
        num_mask_threads: masks are filled while the forward pass runs, and take cores from it.
    """

    def __init__(
        self, load: Callable[[], Compiler], vocab_size: int, eos_token_ids: Sequence[int], *, num_mask_threads: int = 2
    ) -> None:
        self._loader = _Loader(load)
        self._num_words = num_words(vocab_size)
        self._eos_token_ids = tuple(eos_token_ids)
        self._num_mask_threads = num_mask_threads
        self._constraints: dict[int, _Constraint] = {}
        self._compiling: dict[int, _Constraint] = {}
        self._compilers = ThreadPoolExecutor(_NUM_COMPILERS, "compile", _run_behind_steps)
        self._fillers = ThreadPoolExecutor(num_mask_threads, "mask")

    @property
    def is_compiling(self) -> bool:
        return bool(self._compiling)

    def prepare(self, request_id: int, params: SamplingParams) -> None:
        """Begin to compile the grammar of a request; `ready` tells when it is done."""
        assert params.grammar is not None
        words = np.empty(self._num_words, dtype=np.int32)
        future = self._compilers.submit(self._loader.matcher, params.grammar, words)
        constraint = _Constraint(params, future, time.monotonic(), words)
        self._constraints[request_id] = self._compiling[request_id] = constraint

    def forget(self, request_ids: Iterable[int]) -> None:
        """Free what ended requests had."""
        for request_id in request_ids:
            constraint = self._constraints.pop(request_id, None)
            if constraint is not None and self._compiling.pop(request_id, None) is not None:
                constraint.future.cancel()

    def wait(self) -> None:
        """Sleep a few milliseconds, or until a compilation ends."""
        futures = [constraint.future for constraint in self._compiling.values()]
        wait(futures, _POLL_SECONDS, return_when=FIRST_COMPLETED)

    def ready(self) -> list[tuple[int, RequestError | None]]:
        """The requests whose compilation has ended since the last call or has taken too long, with what went wrong."""
        ended: list[tuple[int, RequestError | None]] = []
        for request_id, constraint in list(self._compiling.items()):
            if constraint.future.done():
                error = self._take_matcher(constraint)
            elif time.monotonic() - constraint.since > COMPILE_SECONDS:
                error = RequestError(f"compiling the grammar takes longer than {COMPILE_SECONDS:g} s; simplify it")
            else:
                continue
            del self._compiling[request_id]
            ended.append((request_id, error))
        return ended

    def start_masks(self, plan: Plan) -> "MaskJob | None":
        """Begin to fill the masks of the rows that will sample; None when no row is constrained."""
        rows = {row.request_id: self._constraints.get(row.request_id) for row in plan.rows if row.sample}
        constrained = {request_id: constraint for request_id, constraint in rows.items() if constraint is not None}
        if not constrained:
            return None
        new = [each for each in constrained.values() if not each.is_filling and not each.is_filled]
        now = time.monotonic()
        for constraint in new:
            constraint.is_filling, constraint.since = True, now
        parts = [new[index :: self._num_mask_threads] for index in range(self._num_mask_threads)]
        jobs = [self._fillers.submit(self._fill, part) for part in parts if part]
        return MaskJob(constrained, jobs)

    def advance(self, plan: Plan, sampled: Sequence[Sampled | None]) -> list[Sampled | None]:
        """Move every matcher past its row's new token, and add what must follow or the error that ends the row."""
        return [self._advance(row.request_id, sample) for row, sample in zip(plan.rows, sampled, strict=True)]

    def _take_matcher(self, constraint: _Constraint) -> RequestError | None:
        error = constraint.future.exception()
        if error is None:
            matcher = constraint.matcher = constraint.future.result()
            self._finish_mask(constraint, matcher)
            return None
        if isinstance(error, RequestError):
            return error
        logger.error("a grammar could not be compiled", exc_info=error)
        return RequestError("the grammar could not be compiled", status=500)

    def _fill(self, constraints: Sequence[_Constraint]) -> None:
        """In a mask thread."""
        for constraint in constraints:
            assert constraint.matcher is not None
            try:
                constraint.matcher.fill(constraint.words)
                self._finish_mask(constraint, constraint.matcher)
            except Exception:  # ends its own request only
                logger.exception("a mask could not be filled")
                constraint.is_broken = True
            constraint.is_filling = False

    def _finish_mask(self, constraint: _Constraint, matcher: "Matcher") -> None:
        if constraint.params.ignore_eos and not matcher.is_complete:
            self._rule_out_end(constraint.words)
        constraint.is_filled = True

    def _rule_out_end(self, words: Words) -> None:
        """Forbid end-of-sequence tokens unless nothing else is allowed."""
        kept = words.copy()
        for token_id in self._eos_token_ids:
            kept[token_id // 32] &= ~(1 << token_id % 32)
        if kept.any():
            words[:] = kept

    def _advance(self, request_id: int, sample: Sampled | None) -> Sampled | None:
        constraint = self._constraints.get(request_id)
        if constraint is None or constraint.matcher is None or (sample is not None and sample.error is not None):
            return sample
        if sample is None:  # no row of a request samples whose mask is not finished
            is_late = constraint.is_filling and time.monotonic() - constraint.since > MASK_SECONDS
            gives_up = is_late or constraint.is_broken
            return _failed("it takes too long to find what may follow") if gives_up else None
        matcher = constraint.matcher
        constraint.is_filled = False
        if matcher.error is None:
            matcher.consume(sample.token_id)
        if matcher.error is not None:
            return _failed(matcher.error)
        forced = self._forced(constraint, matcher) if constraint.jumps else []
        constraint.num_output += 1 + len(forced)
        return msgspec.structs.replace(sample, forced_ids=tuple(forced)) if forced else sample

    def _forced(self, constraint: _Constraint, matcher: "Matcher") -> list[int]:
        forced = matcher.consume_forced()
        may_end = constraint.num_output + 1 + len(forced) + 1 >= constraint.params.min_tokens
        return [*forced, self._eos_token_ids[0]] if may_end and matcher.is_complete else forced


class MaskJob:
    """The masks of one step, in the making."""

    def __init__(self, constraints: dict[int, _Constraint], jobs: "list[Future[None]]") -> None:
        self._constraints = constraints
        self._jobs = jobs

    def result(self) -> TokenMasks:
        """Wait for a moment. What is not finished then is late, and goes on while other steps run."""
        for job in wait(self._jobs, _GRACE_SECONDS).done:
            job.result()
        late = frozenset(request_id for request_id, each in self._constraints.items() if not each.is_filled)
        words = {request_id: each.words for request_id, each in self._constraints.items() if request_id not in late}
        return TokenMasks(words, late)


class _Loader:
    """The compiler, made when it is first asked."""

    def __init__(self, load: Callable[[], Compiler]) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._compiler: Compiler | None = None

    def matcher(self, grammar: str, words: Words) -> "Matcher":
        with self._lock:
            if self._compiler is None:
                self._compiler = self._load()
        return self._compiler.matcher(grammar, words)


def _run_behind_steps() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _COMPILER_NICENESS)


def _failed(reason: str) -> Sampled:
    return Sampled(0, error=f"the output cannot be continued by the grammar: {reason}", error_status=400)
