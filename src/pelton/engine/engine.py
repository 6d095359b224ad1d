"""Engine: joins Scheduler and Runner. One call of `step()` is one step."""

import logging
from collections.abc import Sequence
from typing import Protocol

from pelton.engine.grammars import Grammars
from pelton.sched.scheduler import Scheduler
from pelton.structured.masks import TokenMasks
from pelton.types import EngineStats, Output, Plan, Sampled, SamplingParams

logger = logging.getLogger(__name__)


class PlanRunner(Protocol):
    """What the engine needs of a runner. Runner is the real one; tests bring scripted ones."""

    def forward(self, plan: Plan) -> None: ...

    def sample(self, masks: TokenMasks | None = None) -> list[Sampled | None]: ...


class Engine:
    """Synchronous and single-threaded; whoever owns it calls `step` while `has_work`.

    A request with a grammar is held until that is compiled, while others run. Without `grammars` there are none.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: PlanRunner,
        grammars: Grammars | None = None,
        *,
        check_when_idle: bool = True,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._grammars = grammars
        self._check_when_idle = check_when_idle

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    @property
    def stats(self) -> EngineStats:
        return self._scheduler.stats()

    def add(
        self, request_id: int, prompt_ids: Sequence[int], params: SamplingParams, *, priority: int = 0, salt: str = ""
    ) -> Output | None:
        """Queue a request; an Output with the error when it cannot be run at all."""
        grammars = None if params.grammar is None else self._grammars
        if params.grammar is not None and grammars is None:
            return Output(request_id, finish_reason="error", error="this engine knows no grammars", error_status=400)
        try:
            self._scheduler.add(
                request_id, prompt_ids, params, priority=priority, salt=salt.encode(), held=grammars is not None
            )
        except ValueError as error:
            return Output(request_id, finish_reason="error", error=str(error))
        if grammars is not None:
            grammars.prepare(request_id, params)
        return None

    def abort(self, request_id: int) -> Output | None:
        """End a request; None when it is already gone."""
        output = self._scheduler.abort(request_id)
        if self._grammars is not None:
            self._grammars.forget([request_id])
        self._check_if_idle()
        return output

    def step(self) -> list[Output]:
        """Plan, compute, sample and commit one step. A step that raises fails its own requests, nobody else's.

        With nothing to compute until a grammar is compiled it waits for that, a few milliseconds at most.
        """
        outputs = self._release_ready()
        plan = self._scheduler.schedule()
        if plan.rows:
            outputs += self._run(plan)
        elif not outputs and self._grammars is not None and self._grammars.is_compiling:
            self._grammars.wait()
        if self._grammars is not None:
            self._grammars.forget(output.request_id for output in outputs if output.finish_reason is not None)
        self._check_if_idle()
        return outputs

    def _run(self, plan: Plan) -> list[Output]:
        masks = None if self._grammars is None else self._grammars.start_masks(plan)
        try:
            self._runner.forward(plan)
            if masks is None or self._grammars is None:
                sampled = self._runner.sample()
            else:
                sampled = self._grammars.advance(plan, self._runner.sample(masks.result()))
        except Exception:  # whatever a step raises must not end the process
            logger.exception("a step of %d rows failed; its requests end with an error", len(plan.rows))
            return self._fail(plan)
        return self._scheduler.commit(plan, sampled)

    def _release_ready(self) -> list[Output]:
        """Let those requests run whose grammars are compiled by now, and end those whose grammars cannot be."""
        outputs: list[Output | None] = []
        for request_id, error in self._grammars.ready() if self._grammars is not None else ():
            if error is None:
                self._scheduler.release(request_id)
            else:
                outputs.append(self._scheduler.fail(request_id, "error", error.message, error.status))
        return [output for output in outputs if output is not None]

    def _fail(self, plan: Plan) -> list[Output]:
        outputs = [
            self._scheduler.fail(row.request_id, "error", "the step that computed it failed") for row in plan.rows
        ]
        self._scheduler.commit(plan, [None] * len(plan.rows))
        return [output for output in outputs if output is not None]

    def _check_if_idle(self) -> None:
        if self._check_when_idle and not self._scheduler.has_work:
            self._scheduler.check()
