"""Runner: executes plans on one device. One per rank."""

import math
from collections.abc import Sequence, Set
from typing import Protocol

import msgspec
import torch

from pelton.layers.context import Batch, LayerContext, LayerKV
from pelton.model_config import ModelInfo
from pelton.ops.program import Program
from pelton.ops.sampling import mask_logits, sample
from pelton.runner.batch import BatchBuilder
from pelton.runner.graphs import StepGraphs
from pelton.runner.logits import adjust_logits
from pelton.runner.pooling import HiddenStates
from pelton.runner.prompt_logprobs import has_unscored, score_prompt
from pelton.runner.sampler import sampling_controls, token_logprobs
from pelton.runner.state import RequestState
from pelton.structured.masks import TokenMasks
from pelton.types import Plan, Row, Sampled


class CausalLM(Protocol):
    """What the runner needs of a model."""

    def __call__(self, batch: Batch, kv: Sequence[LayerKV]) -> torch.Tensor: ...

    def logits(self, stream: torch.Tensor, rows: torch.Tensor) -> torch.Tensor: ...

    def hidden(self, stream: torch.Tensor, rows: torch.Tensor) -> torch.Tensor: ...


class Runner:
    """`forward(plan)` computes a step, `sample()` chooses its tokens; in between the host may prepare masks."""

    def __init__(
        self,
        model: CausalLM,
        kv: Sequence[LayerKV],
        info: ModelInfo,
        page_size: int,
        context: LayerContext,
    ) -> None:
        self._model = model
        self._kv = kv
        self._info = info
        self._batches = BatchBuilder(page_size, context.device)
        self._graphs = StepGraphs(self._compute, context.scratch) if Program.is_available(context.device) else None
        self._scratch = context.scratch
        self._states: dict[int, RequestState] = {}
        self._unscored: set[int] = set()  # requests that wait for log-probabilities of their prompts
        self._pools: dict[int, HiddenStates] = {}  # of the requests that want a vector
        self._plan = Plan(())
        self._stream: torch.Tensor | None = None
        self._logits: torch.Tensor | None = None

    @torch.inference_mode()
    def forward(self, plan: Plan) -> None:
        """One packed forward pass over the plan's rows, up to the logits of the sampling ones."""
        for request_id in plan.ended:  # first: an id may come back at once
            self._states.pop(request_id, None)
            self._unscored.discard(request_id)
            self._pools.pop(request_id, None)
        for new in plan.new:
            state = self._states[new.request_id] = RequestState(new)
            if has_unscored(state):
                self._unscored.add(new.request_id)
            if new.params.pooling is not None:
                self._pools[new.request_id] = HiddenStates(new.params.pooling, state.num_prompt)
        for forced in plan.forced:
            for position, token_id in enumerate(forced.token_ids, start=forced.position):
                self._states[forced.request_id].put(position, token_id)
        self._plan, self._stream, self._logits = plan, None, None
        if plan.rows:
            batch = self._batches.build(plan, self._states)
            num_tokens, num_sampled = len(batch.token_ids), len(batch.sample_indices)
            if self._graphs is not None and self._is_decode_step(num_tokens, num_sampled):
                self._logits = self._graphs.run(batch, self._batches.memory)
            else:
                self._stream = self._model(batch, self._kv)
                if num_sampled:
                    self._logits = self._model.logits(self._stream, batch.sample_indices)

    def _is_decode_step(self, num_tokens: int, num_sampled: int) -> bool:
        """All rows sample, and at most few have more than one token: forced ones, or a short prompt without scores."""
        if num_sampled < len(self._plan.rows):
            return False
        return num_tokens == num_sampled or (num_tokens <= 2 * num_sampled + 16 and not self._unscored)

    def _compute(self, batch: Batch) -> torch.Tensor:
        return self._model.logits(self._model(batch, self._kv), batch.sample_indices)

    @torch.inference_mode()
    def sample(self, masks: TokenMasks | None = None) -> list[Sampled | None]:
        """Tokens of the step that `forward` computed: an entry a row, None where there is nothing to say of it."""
        late = masks.late if masks is not None else frozenset[int]()
        rows = [row for row in self._plan.rows if row.sample]
        sampled = iter(self._sample_rows(rows, masks) if rows else ())
        results = [next(sampled) if row.sample else None for row in self._plan.rows]
        if late:
            results = [
                None if row.request_id in late else result for row, result in zip(self._plan.rows, results, strict=True)
            ]
        if self._unscored:
            self._score_prompts(results, late)
        if self._pools:
            self._pool(results)
        return results

    def _pool(self, results: list[Sampled | None]) -> None:
        """Add vectors to the results, where the prompts of requests that want one are complete."""
        stream = self._stream
        first = 0
        for index, row in enumerate(self._plan.rows):
            pool = self._pools.get(row.request_id)
            if pool is not None and stream is not None:
                vector = pool.add(row, first, lambda rows: self._model.hidden(stream, rows), self._scratch)
                results[index] = _pooled(vector) if pool.is_complete else None
            first += row.num_tokens

    def _score_prompts(self, results: list[Sampled | None], late: Set[int]) -> None:
        """Add log-probabilities of prompt tokens to the results, where requests wait for them."""
        first = 0
        for index, row in enumerate(self._plan.rows):
            if row.request_id in self._unscored:
                results[index] = self._score_row(row, first, results[index], is_late=row.request_id in late)
            first += row.num_tokens

    def _score_row(self, row: Row, first: int, result: Sampled | None, *, is_late: bool) -> Sampled | None:
        """A late row says nothing: what it scored is kept until its last position is computed again."""
        state, stream = self._states[row.request_id], self._stream
        if result is not None and result.error:
            return result
        if stream is not None:
            state.scored += score_prompt(
                row, first, state, lambda rows: self._model.logits(stream, rows), self._scratch
            )
        if is_late:
            return None
        if not has_unscored(state):
            self._unscored.discard(row.request_id)
        entries, state.scored = state.scored, ()
        if any(math.isnan(entry.logprob) for entry in entries):
            return _no_token(math.nan, state)
        return msgspec.structs.replace(result or Sampled(0), prompt_logprobs=entries)

    def _sample_rows(self, rows: Sequence[Row], masks: TokenMasks | None) -> list[Sampled]:
        assert self._logits is not None, "sample() before forward()"
        states = [self._states[row.request_id] for row in rows]
        positions = [row.start + row.num_tokens for row in rows]
        logits = adjust_logits(self._logits, states, positions, self._info.eos_token_ids)
        if masks is not None:
            logits = self._mask(logits, rows, states, masks)
        rows_controls = [
            sampling_controls(state.params, position) for state, position in zip(states, positions, strict=True)
        ]
        tokens, highest = sample(logits, torch.tensor(rows_controls, dtype=torch.float64))
        results = [
            Sampled(token) if math.isfinite(value) else _no_token(value, state)
            for token, value, state in zip(tokens.tolist(), highest.tolist(), states, strict=True)
        ]
        self._add_logprobs(results, states)
        for state, position, result in zip(states, positions, results, strict=True):
            state.put(position, result.token_id)
        return results

    def _mask(
        self, logits: torch.Tensor, rows: Sequence[Row], states: Sequence[RequestState], masks: TokenMasks
    ) -> torch.Tensor:
        """In place where nobody reads the model's own logits afterwards."""
        masked = [index for index, row in enumerate(rows) if row.request_id in masks.words]
        if logits is self._logits and any(states[index].params.logprobs is not None for index in masked):
            logits = logits.clone()
        mask_logits(logits, masked, [masks.words[rows[index].request_id] for index in masked])
        return logits

    def _add_logprobs(self, results: list[Sampled], states: Sequence[RequestState]) -> None:
        wanted = [
            index
            for index, state in enumerate(states)
            if state.params.logprobs is not None and results[index].error is None
        ]
        if not wanted or self._logits is None:
            return
        tokens = [results[index].token_id for index in wanted]
        counts = [states[index].params.logprobs or 0 for index in wanted]
        for index, logprobs in zip(wanted, token_logprobs(self._logits[wanted], tokens, counts), strict=True):
            results[index] = Sampled(results[index].token_id, logprobs)


def _pooled(vector: bytes | None) -> Sampled:
    if vector is None:
        return Sampled(0, error="the model gave hidden states that are not finite")
    return Sampled(0, vector=vector)


def _no_token(highest_logit: float, state: RequestState) -> Sampled:
    if highest_logit != -math.inf:
        return Sampled(0, error="the model gave logits that are not finite")
    constraint = "the grammar, " if state.params.grammar is not None else ""
    return Sampled(
        0,
        error=f"no token is allowed: {constraint}allowed_token_ids, logit_bias, bad_words and min_tokens rule out all "
        "of them",
        error_status=400,
    )
