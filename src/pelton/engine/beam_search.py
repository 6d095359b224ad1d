"""Beam search over an engine: requests of one token, whose log-probabilities decide which sequences go on.

The prefix cache makes it cheap: of each request only the last page is computed.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pelton.engine.protocol import EngineClient
from pelton.types import Delta, FinishReason, SamplingParams, TokenLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSettings:
    """`width` sequences go on at each step.

    A complete sequence's score is its log-probability / (number of output tokens ** length_penalty). The search ends at
    max_tokens, or when `width` sequences are complete: at once with `early_stopping`, else when the best one that goes
    on scores no better than the worst of them.
    """

    width: int
    length_penalty: float = 1.0
    early_stopping: bool = False


@dataclass(frozen=True, slots=True)
class BeamSequence:
    """An output, complete where it has a finish_reason. `logprob` is the sum over its tokens."""

    entries: tuple[TokenLogprobs, ...] = ()
    logprob: float = 0.0
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(entry.token_id for entry in self.entries)


async def beam_search(
    engine: EngineClient,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    settings: BeamSettings,
    *,
    priority: int = 0,
    salt: str = "",
) -> list[BeamSequence]:
    """The most likely outputs, best first: as many as the beam is wide. Deterministic; the rules are transformers'.

    Args:
        params: of these, what says where an output ends: max_tokens (not None), min_tokens, stop_token_ids, ignore_eos.

    Raises:
        RequestError, EngineDeadError: as EngineClient.submit gives them.
    """
    search = _Search(params, settings, engine.info.eos_token_ids)
    step_params = SamplingParams(
        temperature=0.0, max_tokens=1, logprobs=settings.width + len(search.ends), ignore_eos=True, seed=0
    )

    def submit(sequence: BeamSequence, sink: Callable[[Delta | Exception], None]) -> Callable[[], None]:
        return engine.submit((*prompt_ids, *sequence.token_ids), step_params, sink, priority=priority, salt=salt)

    while search.running:
        predictions = await _predict(search.running, submit)
        if predictions is None:
            return search.aborted()
        search.advance(predictions)
    return search.complete


class _Search:
    """The sequences that go on, and the best that are complete, both best first."""

    def __init__(self, params: SamplingParams, settings: BeamSettings, eos_token_ids: Sequence[int]) -> None:
        assert params.max_tokens is not None
        self._max_tokens = params.max_tokens
        self._min_tokens = params.min_tokens
        self._settings = settings
        self._stop_token_ids = frozenset(params.stop_token_ids)
        self.ends = self._stop_token_ids | frozenset(() if params.ignore_eos else eos_token_ids)
        self._eos_token_ids = self.ends.intersection(eos_token_ids if not params.ignore_eos else ())
        self.running = [BeamSequence()]
        self.complete: list[BeamSequence] = []

    def advance(self, predictions: Sequence[TokenLogprobs]) -> None:
        """Make each running sequence a token longer, given what may follow each."""
        width = self._settings.width
        num_tokens = len(self.running[0].entries) + 1
        is_last = num_tokens == self._max_tokens
        candidates = self._candidates(predictions, may_end=num_tokens > self._min_tokens)
        going_on: list[BeamSequence] = []
        for rank, sequence in enumerate(candidates):
            token_id = sequence.entries[-1].token_id
            if token_id in self.ends or is_last:
                if rank < width:  # a less likely one would be complete before likelier ones that go on
                    self.complete.append(self._ended(sequence, token_id))
            elif len(going_on) < width:
                going_on.append(sequence)
        self.complete.sort(key=self._score, reverse=True)
        del self.complete[width:]
        is_decided = len(self.complete) == width and (not going_on or self._is_decided(going_on[0]))
        self.running = [] if is_decided else going_on

    def aborted(self) -> list[BeamSequence]:
        """What there is when the engine stops, as many as the beam is wide."""
        stopped = [BeamSequence(sequence.entries, sequence.logprob, "abort") for sequence in self.running]
        width = self._settings.width
        return [*self.complete, *stopped, *[BeamSequence(finish_reason="abort")] * width][:width]

    def _candidates(self, predictions: Sequence[TokenLogprobs], *, may_end: bool) -> list[BeamSequence]:
        """Every sequence with every likely token, best first. At equal probabilities, in the order of the beams."""
        candidates = [
            BeamSequence(
                (*sequence.entries, TokenLogprobs(token_id, logprob, rank, prediction.top)), sequence.logprob + logprob
            )
            for sequence, prediction in zip(self.running, predictions, strict=True)
            for rank, (token_id, logprob) in enumerate(prediction.top, start=1)
            if may_end or token_id not in self.ends
        ]
        candidates.sort(key=lambda candidate: candidate.logprob, reverse=True)
        return candidates

    def _ended(self, sequence: BeamSequence, token_id: int) -> BeamSequence:
        if token_id in self._eos_token_ids:
            return BeamSequence(sequence.entries, sequence.logprob, "stop")
        if token_id in self._stop_token_ids:
            return BeamSequence(sequence.entries, sequence.logprob, "stop", token_id)
        return BeamSequence(sequence.entries, sequence.logprob, "length")

    def _is_decided(self, best: BeamSequence) -> bool:
        """Whether no running sequence, the best of them given, may become one of the complete ones."""
        return self._settings.early_stopping or self._score(best) <= self._score(self.complete[-1])

    def _score(self, sequence: BeamSequence) -> float:
        return sequence.logprob / len(sequence.entries) ** self._settings.length_penalty


async def _predict(
    sequences: Sequence[BeamSequence],
    submit: Callable[[BeamSequence, Callable[[Delta | Exception], None]], Callable[[], None]],
) -> list[TokenLogprobs] | None:
    """What may follow each sequence; None if the engine ended one of the requests."""
    loop = asyncio.get_running_loop()
    answers = [_Answer(loop) for _ in sequences]
    aborts: list[Callable[[], None]] = []
    try:
        for sequence, answer in zip(sequences, answers, strict=True):
            aborts.append(submit(sequence, answer.take))
        predictions = await asyncio.gather(*(answer.prediction for answer in answers))
    finally:
        for abort in aborts:
            abort()
    return [prediction for prediction in predictions if prediction is not None] if all(predictions) else None


class _Answer:
    """Waits for the one token of a request."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.prediction: asyncio.Future[TokenLogprobs | None] = loop.create_future()

    def take(self, delta: Delta | Exception) -> None:
        if self.prediction.done():
            return
        if isinstance(delta, Exception):
            self.prediction.set_exception(delta)
        elif delta.logprobs:
            self.prediction.set_result(delta.logprobs[0])
        elif delta.finish_reason is not None:
            self.prediction.set_result(None)
