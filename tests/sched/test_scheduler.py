"""Behaviour of the scheduling core that a single example shows best."""

import subprocess
import sys

import pytest

from pelton.sched.pages import PagePool
from pelton.sched.scheduler import Scheduler
from pelton.types import Output, Plan, Sampled, SamplingParams, TokenLogprobs

from sequential import EOS, SlotRunner


def make(
    num_pages: int = 16, page_size: int = 4, budget: int = 64, max_running: int = 8, caching: bool = True
) -> tuple[Scheduler, SlotRunner]:
    pool = PagePool(num_pages, page_size)
    scheduler = Scheduler(
        pool,
        max_batch_tokens=budget,
        max_running=max_running,
        max_model_len=num_pages * page_size,
        eos_token_ids=[EOS],
        enable_prefix_caching=caching,
    )
    return scheduler, SlotRunner(num_pages, page_size)


def step(scheduler: Scheduler, runner: SlotRunner) -> tuple[Plan, list[Output]]:
    plan = scheduler.schedule()
    outputs = scheduler.commit(plan, runner.run(plan))
    scheduler.check()
    return plan, outputs


def params(max_tokens: int = 4) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True)


def test_decode_rows_come_before_prefill_in_the_budget_and_after_it_in_the_plan() -> None:
    scheduler, runner = make(budget=5)
    scheduler.add(1, [1, 2, 3], params())
    step(scheduler, runner)
    scheduler.add(2, list(range(1, 11)), params())
    plan, _ = step(scheduler, runner)
    assert [(row.request_id, row.start, row.num_tokens, row.sample) for row in plan.rows] == [
        (2, 0, 4, False),
        (1, 3, 1, True),
    ]
    assert plan.num_tokens == 5


def test_a_prompt_is_computed_in_chunks_and_sampled_once() -> None:
    scheduler, runner = make(budget=4)
    scheduler.add(1, list(range(1, 11)), params(1))
    rows = [step(scheduler, runner)[0].rows[0] for _ in range(3)]
    assert [(row.start, row.num_tokens, row.sample) for row in rows] == [(0, 4, False), (4, 4, False), (8, 2, True)]
    assert not scheduler.has_work


def test_a_second_request_reuses_the_pages_of_a_shared_prefix_and_computes_at_least_one_token() -> None:
    scheduler, runner = make()
    prompt = list(range(1, 13))  # three whole pages
    scheduler.add(1, prompt, params(1))
    step(scheduler, runner)
    scheduler.add(2, prompt, params(1))
    plan, outputs = step(scheduler, runner)
    assert (plan.rows[0].start, plan.rows[0].num_tokens) == (11, 1)
    assert outputs[0].num_cached_tokens == 11
    assert scheduler.stats().prefix_cache_queries == 24
    assert scheduler.stats().prefix_cache_hits == 11


def test_requests_of_another_salt_share_nothing() -> None:
    scheduler, runner = make()
    prompt = list(range(1, 13))
    scheduler.add(1, prompt, params(1), salt=b"a")
    step(scheduler, runner)
    scheduler.add(2, prompt, params(1), salt=b"b")
    plan, _ = step(scheduler, runner)
    assert plan.rows[0].start == 0


def test_without_prefix_caching_nothing_is_reused() -> None:
    scheduler, runner = make(caching=False)
    for request_id in (1, 2):
        scheduler.add(request_id, list(range(1, 13)), params(1))
        plan, _ = step(scheduler, runner)
        assert plan.rows[0].start == 0


def test_admission_reserves_nothing_for_max_tokens() -> None:
    scheduler, runner = make(num_pages=32, page_size=4, max_running=16)
    for request_id in range(10):
        scheduler.add(request_id, [1, 2], params(100))
    step(scheduler, runner)
    assert scheduler.stats().num_running == 10


def test_a_full_pool_preempts_the_last_arrival_and_everything_still_finishes() -> None:
    scheduler, runner = make(num_pages=8, page_size=2, caching=False)
    for request_id in range(3):
        scheduler.add(request_id, [1 + request_id, 2], params(10))
    tokens: dict[int, list[int]] = {0: [], 1: [], 2: []}
    finished: list[int] = []
    while scheduler.has_work:
        _, outputs = step(scheduler, runner)
        for output in outputs:
            tokens[output.request_id] += output.token_ids
            if output.finish_reason:
                finished.append(output.request_id)
    assert scheduler.stats().num_preemptions > 0
    assert finished[0] == 0
    assert all(len(output) == 10 for output in tokens.values())


def test_a_lower_priority_value_runs_first() -> None:
    scheduler, runner = make(max_running=1)
    scheduler.add(1, [1, 2], params(1), priority=5)
    scheduler.add(2, [3, 4], params(1), priority=0)
    plan, _ = step(scheduler, runner)
    assert plan.rows[0].request_id == 2


def test_an_aborted_request_frees_its_pages_at_once_and_ends_once() -> None:
    scheduler, runner = make()
    scheduler.add(1, [1, 2, 3], params())
    step(scheduler, runner)
    output = scheduler.abort(1)
    assert output is not None
    assert output.finish_reason == "abort"
    assert scheduler.stats().num_used_pages == 0
    assert scheduler.abort(1) is None
    assert scheduler.schedule() == Plan(())  # nothing to run: what ended waits for the next plan with rows
    scheduler.add(2, [1], params())
    assert scheduler.schedule().ended == (1,)


def test_a_request_aborted_in_flight_keeps_its_pages_until_the_step_commits() -> None:
    scheduler, runner = make()
    scheduler.add(1, [1, 2, 3], params())
    plan = scheduler.schedule()
    sampled = runner.run(plan)
    scheduler.abort(1)
    assert scheduler.stats().num_used_pages == 1
    assert scheduler.commit(plan, sampled) == []
    assert scheduler.stats().num_used_pages == 0


def test_a_row_that_failed_ends_its_request_alone() -> None:
    scheduler, runner = make()
    scheduler.add(1, [1, 2], params())
    scheduler.add(2, [3, 4], params())
    plan = scheduler.schedule()
    sampled = runner.run(plan)
    sampled[0] = Sampled(0, error="no token is allowed here")
    outputs = scheduler.commit(plan, sampled)
    assert outputs[0].finish_reason == "error"
    assert outputs[0].error == "no token is allowed here"
    assert outputs[1].finish_reason is None
    scheduler.check()


@pytest.mark.parametrize(
    ("settings", "tokens", "reason", "stop_reason"),
    [
        ({"max_tokens": 3}, [5, 5, 5], "length", None),
        ({"max_tokens": 3}, [5, EOS], "stop", None),
        ({"max_tokens": 3, "ignore_eos": True}, [5, EOS, 5], "length", None),
        ({"max_tokens": 9, "stop_token_ids": (6,)}, [5, 6], "stop", 6),
        ({"max_tokens": None}, [5] * 62, "length", None),
    ],
)
def test_finish_reasons(settings: dict[str, object], tokens: list[int], reason: str, stop_reason: int | None) -> None:
    scheduler, _ = make()
    scheduler.add(1, [1, 2], SamplingParams(**settings))  # type: ignore[arg-type]
    outputs = [scheduler.commit(scheduler.schedule(), [Sampled(token)])[0] for token in tokens]
    assert [output.finish_reason for output in outputs[:-1]] == [None] * (len(tokens) - 1)
    assert (outputs[-1].finish_reason, outputs[-1].stop_reason) == (reason, stop_reason)
    assert not scheduler.has_work


def test_waste_counts_allocated_slots_without_a_token() -> None:
    scheduler, runner = make(page_size=4)
    scheduler.add(1, [1, 2, 3, 4, 5], params())
    step(scheduler, runner)
    stats = scheduler.stats()
    assert (stats.num_used_pages, stats.num_used_slots) == (2, 5)
    assert stats.kv_waste == pytest.approx(3 / 8)


def test_a_prompt_that_fills_the_context_is_refused() -> None:
    scheduler, _ = make(num_pages=2, page_size=4)
    with pytest.raises(ValueError, match="leaves no room"):
        scheduler.add(1, [1] * 8, params())
    with pytest.raises(ValueError, match="empty"):
        scheduler.add(2, [], params())


@pytest.mark.parametrize("package", ["pelton.sched.scheduler", "pelton.http", "pelton.cli", "pelton"])
def test_scheduling_and_serving_leave_torch_out(package: str) -> None:
    code = f"import sys, {package}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_request_of_no_output_computes_its_prompt_and_ends() -> None:
    scheduler, runner = make(budget=4, num_pages=4, page_size=4)
    scheduler.add(1, list(range(1, 17)), params(0))  # fills the whole context
    ends: list[list[Output]] = []
    while scheduler.has_work:
        plan, outputs = step(scheduler, runner)
        assert not any(row.sample for row in plan.rows)
        ends.append(outputs)
    assert ends == [[], [], [], [Output(1, finish_reason="length")]]
    assert scheduler.stats().num_used_pages == 0
    with pytest.raises(ValueError, match="no room"):
        scheduler.add(2, list(range(17)), params(0))


def test_a_request_of_no_output_is_planned_once_where_steps_overlap() -> None:
    scheduler, runner = make()
    scheduler.add(1, [1, 2, 3], params(0))
    plan = scheduler.schedule()
    assert scheduler.schedule().rows == ()
    assert [output.finish_reason for output in scheduler.commit(plan, runner.run(plan))] == ["length"]
    scheduler.check()


def test_a_row_without_a_sample_carries_log_probabilities_or_an_error() -> None:
    scheduler, _ = make(budget=2)
    scheduler.add(1, [1, 2, 3, 4, 5], SamplingParams(prompt_logprobs=0))
    entries = (TokenLogprobs(2, -1.0, 1, ()),)
    outputs = scheduler.commit(scheduler.schedule(), [Sampled(0, prompt_logprobs=entries)])
    assert outputs == [Output(1, prompt_logprobs=entries)]
    outputs = scheduler.commit(scheduler.schedule(), [Sampled(0, error="planted", error_status=400)])
    assert outputs == [Output(1, finish_reason="error", error="planted", error_status=400)]
    assert not scheduler.has_work


def test_prompt_log_probabilities_leave_the_prefix_cache_unread() -> None:
    scheduler, runner = make()
    prompt = list(range(1, 13))
    for request_id, count, num_cached in ((1, None, 0), (2, 0, 0), (3, None, 11)):
        scheduler.add(request_id, prompt, SamplingParams(max_tokens=1, prompt_logprobs=count))
        _, outputs = step(scheduler, runner)
        assert outputs[0].num_cached_tokens == num_cached
