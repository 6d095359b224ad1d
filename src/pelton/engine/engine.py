"""Engine: joins Scheduler and Runner. One call of `step()` is one step."""

import logging
from collections.abc import Sequence
from typing import Protocol

from pelton.sched.scheduler import Scheduler
from pelton.types import EngineStats, Output, Plan, Sampled, SamplingParams

logger = logging.getLogger(__name__)


class PlanRunner(Protocol):
    """What the engine needs of a runner. Runner is the real one; tests bring scripted ones."""

    def forward(self, plan: Plan) -> None: ...

    def sample(self) -> list[Sampled | None]: ...


class Engine:
    """Synchronous and single-threaded; whoever owns it calls `step` while `has_work`."""

    def __init__(self, scheduler: Scheduler, runner: PlanRunner, *, check_when_idle: bool = True) -> None:
        self._scheduler = scheduler
        self._runner = runner
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
        try:
            self._scheduler.add(request_id, prompt_ids, params, priority=priority, salt=salt.encode())
        except ValueError as error:
            return Output(request_id, finish_reason="error", error=str(error))
        return None

    def abort(self, request_id: int) -> Output | None:
        """End a request; None when it is already gone."""
        output = self._scheduler.abort(request_id)
        self._check_if_idle()
        return output

    def step(self) -> list[Output]:
        """Plan, compute, sample and commit one step. A step that raises fails its own requests, nobody else's."""
        plan = self._scheduler.schedule()
        if not plan.rows:
            return []
        try:
            self._runner.forward(plan)
            sampled = self._runner.sample()
        except Exception:  # whatever a step raises must not end the process
            logger.exception("a step of %d rows failed; its requests end with an error", len(plan.rows))
            return self._fail(plan)
        outputs = self._scheduler.commit(plan, sampled)
        self._check_if_idle()
        return outputs

    def _fail(self, plan: Plan) -> list[Output]:
        outputs = [
            self._scheduler.fail(row.request_id, "error", "the step that computed it failed") for row in plan.rows
        ]
        self._scheduler.commit(plan, [None] * len(plan.rows))
        return [output for output in outputs if output is not None]

    def _check_if_idle(self) -> None:
        if self._check_when_idle and not self._scheduler.has_work:
            self._scheduler.check()
