"""use_beam_search: its settings, and the choices that a search gives."""

import asyncio
from collections.abc import Callable, Sequence

from pelton.engine.beam_search import BeamSequence, BeamSettings, beam_search
from pelton.engine.delta import to_delta
from pelton.engine.protocol import EngineClient
from pelton.engine.text import TextStream
from pelton.errors import RequestError
from pelton.http.openai.requests import GenerationBody
from pelton.types import MAX_LOGPROBS, Delta, Output, SamplingParams, TokenLogprobs

MAX_LENGTH_PENALTY = 10.0

_NEUTRAL: dict[str, object] = {
    **{"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "logit_bias": None},
    **{"allowed_token_ids": None, "bad_words_ids": (), "grammar": None, "prompt_logprobs": None},
}
_FIELDS = {"bad_words_ids": "bad_words", "grammar": "structured_outputs"}


def beam_settings(body: GenerationBody, params: SamplingParams, eos_token_ids: Sequence[int]) -> BeamSettings | None:
    """None without use_beam_search. The beam is best_of wide, or n.

    Raises:
        RequestError: a field is out of range, or would change what the search follows: the model's own probabilities.
    """
    if not body.use_beam_search:
        return None
    if body.stream:
        raise RequestError("use_beam_search cannot be streamed: set stream to false", param="use_beam_search")
    if params.max_tokens == 0:
        raise RequestError("max_tokens must be at least 1 with use_beam_search", param="max_tokens")
    for name, neutral in _NEUTRAL.items():
        if getattr(params, name) != neutral:
            param = _FIELDS.get(name, name)
            raise RequestError(f"{param} cannot be combined with use_beam_search; leave one of them out", param=param)
    width = params.n if body.best_of is None else body.best_of
    num_ends = len({*params.stop_token_ids, *(() if params.ignore_eos else eos_token_ids)})
    widest = max(MAX_LOGPROBS - num_ends, 1)
    if not params.n <= width <= widest:
        param = "n" if body.best_of is None else "best_of"
        raise RequestError(
            f"{param}: the beam must be at least n = {params.n} and at most {widest} wide, got {width}", param=param
        )
    penalty = 1.0 if body.length_penalty is None else body.length_penalty
    if not -MAX_LENGTH_PENALTY <= penalty <= MAX_LENGTH_PENALTY:
        raise RequestError(
            f"length_penalty must be at least {-MAX_LENGTH_PENALTY} and at most {MAX_LENGTH_PENALTY}, got {penalty}",
            param="length_penalty",
        )
    return BeamSettings(width=width, length_penalty=penalty, early_stopping=bool(body.early_stopping))


def start_search(
    engine: EngineClient,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    settings: BeamSettings,
    sinks: Sequence[Callable[[Delta | Exception], None]],
    *,
    priority: int,
    salt: str,
) -> Callable[[], object]:
    """Search in a task of its own; each sink gets one delta, the best sequence's first. Returns what ends it early.

    An error goes to the first sink.
    """

    async def search() -> None:
        try:
            sequences = await beam_search(engine, prompt_ids, params, settings, priority=priority, salt=salt)
            deltas = [_delta(engine, params, sequence) for sequence in sequences]
        except Exception as error:  # noqa: BLE001 (the sink passes it on)
            sinks[0](error)
            return
        for sink, delta in zip(sinks, deltas, strict=False):  # the beam may be wider than n
            sink(delta)

    return asyncio.create_task(search()).cancel


def _delta(engine: EngineClient, params: SamplingParams, sequence: BeamSequence) -> Delta:
    count = params.logprobs
    logprobs = None if count is None else tuple(_shortened(entry, count) for entry in sequence.entries)
    output = Output(0, sequence.token_ids, logprobs, sequence.finish_reason, sequence.stop_reason)
    return to_delta(TextStream(engine.tokenizer, params), output)


def _shortened(entry: TokenLogprobs, count: int) -> TokenLogprobs:
    return TokenLogprobs(entry.token_id, entry.logprob, entry.rank, entry.top[:count])
