"""LLM: offline generation in this process."""

import contextlib
import itertools
import random
from array import array
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pelton.config import EngineConfig, chosen
from pelton.engine.build import build_engine
from pelton.engine.checks import check_request
from pelton.engine.delta import request_error, to_delta
from pelton.engine.describe import describe
from pelton.engine.text import TextStream
from pelton.types import EngineStats, FinishReason, Output, Pooling, SamplingParams, TokenLogprobs

Prompt = str | Sequence[int]


@dataclass(slots=True)
class CompletionOutput:
    """One choice. `logprobs` has an entry a token where asked for."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list[int])
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class RequestOutput:
    """What one prompt gave; `outputs` has params.n choices.

    `prompt_logprobs` has an entry a prompt token, the first of them None, where asked for, and `vector` is float32 in
    the machine's order.
    """

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    num_cached_tokens: int = 0
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    vector: bytes | None = None


@dataclass(slots=True)
class _Choice:
    """A choice under way."""

    request: RequestOutput
    output: CompletionOutput
    text: TextStream


class LLM:
    """Loads a model into this process and runs prompts through the same engine that serves.

    Args:
        model: GGUF file, safetensors directory or Hugging Face id; the embedded model by default.
        settings: fields of EngineConfig.

    Raises:
        ValueError: the model or a setting cannot work.
    """

    def __init__(self, model: str | None = None, **settings: Any) -> None:  # noqa: ANN401 (fields of EngineConfig)
        described = describe(EngineConfig.from_mapping({"model": model, **settings}))
        self.info = described.info
        self.config = described.config
        self.tokenizer = described.tokenizer
        self._engine = build_engine(self.config, self.info, described.path)
        self._ids = itertools.count()
        self._seeds = random.Random(self.config.seed)

    @property
    def stats(self) -> EngineStats:
        return self._engine.stats

    @property
    def default_params(self) -> SamplingParams:
        """What the model's files recommend, and SamplingParams' own defaults where they say nothing."""
        return SamplingParams(**self.info.sampling_defaults)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Complete every prompt, all in one batch.

        Args:
            prompts: texts or token id lists.
            params: one for all, or one each; `default_params` when None.
            use_tqdm: show a progress bar.
        """
        batch = _as_batch(prompts)
        each = list(params) if isinstance(params, Sequence) else [params or self.default_params] * len(batch)
        if len(each) != len(batch):
            raise ValueError(f"params: {len(each)} given for {len(batch)} prompts; give one, or one a prompt")
        results: list[RequestOutput] = []
        choices: dict[int, _Choice] = {}
        batch_ids = [self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt) for prompt in batch]
        for ids, prompt_params in zip(batch_ids, each, strict=True):  # all before the first one is queued
            check_request(ids, prompt_params, self.info.vocab_size, chosen(self.config.max_model_len))
        for prompt, ids, prompt_params in zip(batch, batch_ids, each, strict=True):
            results.append(self._submit(prompt, ids, prompt_params, choices))
        with _progress(len(choices), shown=use_tqdm) as advance:
            while choices and self._engine.has_work:
                for output in self._engine.step():
                    if self._take(output, choices):
                        advance()
        return results

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        *,
        use_tqdm: bool = False,
    ) -> list[RequestOutput]:
        """Answer one conversation through the model's chat template."""
        text = self.tokenizer.apply_chat_template([dict(message) for message in messages])
        return self.generate([self.tokenizer.encode(text, add_special_tokens=False)], params, use_tqdm=use_tqdm)

    def embed(self, prompts: Prompt | Sequence[Prompt], *, use_tqdm: bool = False) -> list[list[float]]:
        """A vector of length 1 for every prompt: its last hidden state, pooled as `pooling_type` says.

        Args:
            prompts: texts or token id lists.
            use_tqdm: show a progress bar.
        """
        params = SamplingParams(max_tokens=0, pooling=cast("Pooling", self.config.pooling_type))
        results = self.generate(prompts, params, use_tqdm=use_tqdm)
        return [array("f", chosen(result.vector)).tolist() for result in results]

    def _submit(
        self, prompt: Prompt, ids: list[int], params: SamplingParams, choices: dict[int, _Choice]
    ) -> RequestOutput:
        if params.seed is None:
            params = msgspec.structs.replace(params, seed=self._seeds.getrandbits(63))
        result = RequestOutput(prompt if isinstance(prompt, str) else None, ids, [])
        if params.prompt_logprobs is not None:
            result.prompt_logprobs = [None]
        for index in range(params.n):
            request_id = next(self._ids)
            choice_params = params.for_choice(index)
            if index:  # the choices of a prompt share its log-probabilities
                choice_params = msgspec.structs.replace(choice_params, prompt_logprobs=None)
            refused = self._engine.add(request_id, ids, choice_params)
            assert refused is None, "checked above"
            logprobs: list[TokenLogprobs] | None = None if params.logprobs is None else []
            output = CompletionOutput(index, logprobs=logprobs)
            result.outputs.append(output)
            choices[request_id] = _Choice(result, output, TextStream(self.tokenizer, choice_params))
        return result

    def _take(self, output: Output, choices: dict[int, _Choice]) -> bool:
        """Add a step's output to its choice; True when the choice is complete."""
        choice = choices.get(output.request_id)
        if choice is None:  # ended by a stop string in the step before
            return False
        if output.finish_reason == "error":
            for request_id in choices:
                self._engine.abort(request_id)
            raise request_error(output)
        delta = to_delta(choice.text, output)
        completion = choice.output
        completion.text += delta.text
        completion.token_ids += delta.token_ids
        if completion.logprobs is not None:
            completion.logprobs += delta.logprobs or ()
        choice.request.num_cached_tokens = max(choice.request.num_cached_tokens, delta.num_cached_tokens)
        if choice.request.prompt_logprobs is not None:
            choice.request.prompt_logprobs += delta.prompt_logprobs or ()
        if delta.vector is not None:
            choice.request.vector = delta.vector
        if delta.finish_reason is None:
            return False
        completion.finish_reason, completion.stop_reason = delta.finish_reason, delta.stop_reason
        del choices[output.request_id]
        if output.finish_reason is None:
            self._engine.abort(output.request_id)
        return True


def _as_batch(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    items = list(prompts)
    if items and all(isinstance(item, int) for item in items):
        return [[item for item in items if isinstance(item, int)]]
    return [item for item in items if not isinstance(item, int)]


@contextlib.contextmanager
def _progress(total: int, *, shown: bool) -> Generator[Callable[[], None], None, None]:
    """A bar that moves by one at each call."""
    columns = (TextColumn("generating"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, disable=not shown) as progress:
        task = progress.add_task("generating", total=total)
        yield lambda: progress.advance(task)
