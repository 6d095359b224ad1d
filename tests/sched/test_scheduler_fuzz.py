"""Random workloads through the scheduling core against a sequential reference, and planted bugs that it must see.

Some requests are constrained as by a grammar: held at first, with forced tokens after sampled ones, sometimes late.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import pytest

from pelton.sched.pages import PagePool
from pelton.sched.request import Request
from pelton.sched.scheduler import Scheduler
from pelton.types import ForcedTokens, Output, Plan, Row, Sampled, SamplingParams

from sequential import EOS, VOCABULARY, SlotRunner, forced_after, reference

NUM_REQUESTS = 25
NUM_SEEDS = 250
MAX_STEPS = 20_000


@dataclass
class Outcome:
    """What one workload showed; the planted-bug test needs workloads that exercise the mechanism in question."""

    num_preemptions: int = 0
    num_prefix_hits: int = 0
    num_aborts: int = 0
    num_forced: int = 0
    num_late: int = 0
    expected: dict[int, list[int]] = field(default_factory=dict)


class Workload:
    """25 requests with shared prefixes, random sizes, pool, budget, priorities, salts, grammars, aborts, by a seed."""

    def __init__(self, seed: int, overlap: int) -> None:
        self.rng = random.Random(seed)
        self.overlap = overlap
        size, num_pages = self.rng.choice([1, 2, 4]), self.rng.choice([8, 16, 40])
        self.capacity = size * num_pages
        self.pool = PagePool(num_pages, size, secret=b"test")
        self.scheduler = Scheduler(
            self.pool,
            max_batch_tokens=self.rng.choice([1, 3, 8, 64]),
            max_running=self.rng.choice([1, 3, 8]),
            max_model_len=self.capacity,
            eos_token_ids=[EOS],
            enable_prefix_caching=self.rng.random() < 0.8,
        )
        self.runner = SlotRunner(num_pages, size)
        self.shared = [self.rng.randrange(1, VOCABULARY) for _ in range(12)]
        self.in_flight: deque[tuple[Plan, list[Sampled | None]]] = deque()
        self.streamed: dict[int, list[int]] = {}
        self.finished: dict[int, str] = {}
        self.prompts: dict[int, list[int]] = {}
        self.constrained: set[int] = set()
        self.held: list[int] = []
        self.outcome = Outcome()

    def run(self) -> Outcome:
        to_add = deque(range(NUM_REQUESTS))
        for _ in range(MAX_STEPS):
            while to_add and self.rng.random() < 0.5:
                self.add(to_add.popleft())
            self.maybe_abort()
            self.maybe_release()
            self.step()
            self.check()
            if not (to_add or self.scheduler.has_work or self.in_flight):
                break
        else:
            raise AssertionError("the workload never ended")
        self.verify()
        return self.outcome

    def add(self, request_id: int) -> None:
        tail = [self.rng.randrange(1, VOCABULARY) for _ in range(self.rng.randrange(1, 6))]
        prompt = self.beginning() + tail
        max_tokens = self.rng.choice([1, 4, 12, 30])
        if len(prompt) >= self.capacity:
            with pytest.raises(ValueError, match="leaves no room"):
                self.scheduler.add(request_id, prompt, SamplingParams(max_tokens=max_tokens))
            return
        max_tokens = min(max_tokens, self.capacity - len(prompt))
        constrained = self.rng.random() < 0.4
        self.prompts[request_id] = prompt
        if constrained:
            self.constrained.add(request_id)
            self.held.append(request_id)
        self.outcome.expected[request_id] = reference(prompt, max_tokens, constrained=constrained)
        self.streamed[request_id] = []
        params = SamplingParams(max_tokens=max_tokens, grammar="any" if constrained else None)
        salt = self.rng.choice([b"", b"other tenant"])
        priority = self.rng.choice([0, 0, 1])
        self.scheduler.add(request_id, prompt, params, priority=priority, salt=salt, held=constrained)

    def beginning(self) -> list[int]:
        """Of a prompt: what others share, or a request before it and a part of its output, as in a conversation."""
        if self.prompts and self.rng.random() < 0.2:
            earlier = self.rng.choice(list(self.prompts))
            output = self.outcome.expected[earlier]
            return self.prompts[earlier] + output[: self.rng.randrange(len(output) + 1)]
        return self.shared[: self.rng.randrange(12)]

    def maybe_release(self) -> None:
        if self.held and self.rng.random() < 0.5:
            self.scheduler.release(self.held.pop(self.rng.randrange(len(self.held))))

    def maybe_abort(self) -> None:
        running = [request_id for request_id in self.streamed if request_id not in self.finished]
        if running and self.rng.random() < 0.05:
            output = self.scheduler.abort(self.rng.choice(running))
            assert output is not None
            self.record([output])
            self.outcome.num_aborts += 1

    def step(self) -> None:
        plan = self.scheduler.schedule()
        idle = not (plan.rows or self.in_flight or self.held)
        assert not (idle and self.scheduler.has_work), "a request that never runs again"
        if plan.rows:
            late = {
                row.request_id for row in plan.rows if row.request_id in self.constrained and self.rng.random() < 0.1
            }
            sampled = self.runner.run(plan, late)
            self.in_flight.append(
                (plan, [self.force(row, sample) for row, sample in zip(plan.rows, sampled, strict=True)])
            )
            self.outcome.num_late += len(late)
        if self.in_flight and (len(self.in_flight) > self.overlap or not plan.rows):
            self.record(self.scheduler.commit(*self.in_flight.popleft()))

    def force(self, row: Row, sample: Sampled | None) -> Sampled | None:
        """The sample of a row with what its grammar appends."""
        if sample is None or row.request_id not in self.constrained:
            return sample
        context = [self.runner.tokens[row.request_id][position] for position in range(row.start + row.num_tokens + 1)]
        forced = forced_after(context)
        self.outcome.num_forced += len(forced)
        return msgspec.structs.replace(sample, forced_ids=tuple(forced))

    def check(self) -> None:
        self.scheduler.check()
        launched = {page for plan, _ in self.in_flight for row in plan.rows for page in row.pages}
        assert not launched & set(self.pool._free), "a page was freed under a launched step"

    def record(self, outputs: list[Output]) -> None:
        for output in outputs:
            assert output.request_id not in self.finished, "output after the end"
            self.streamed[output.request_id] += output.token_ids
            if output.finish_reason is not None:
                self.finished[output.request_id] = output.finish_reason

    def verify(self) -> None:
        assert self.pool.num_used == 0, "pages leaked"
        for request_id, expected in self.outcome.expected.items():
            got, reason = self.streamed[request_id], self.finished[request_id]
            if reason == "abort":
                assert got == expected[: len(got)]
            else:
                assert got == expected, f"request {request_id}"
                assert reason == ("stop" if expected[-1] == EOS else "length")
        stats = self.scheduler.stats()
        self.outcome.num_preemptions = stats.num_preemptions
        self.outcome.num_prefix_hits = stats.prefix_cache_hits


def run_seeds(overlap: int, num_seeds: int) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for seed in range(num_seeds):
        try:
            outcomes.append(Workload(seed, overlap).run())
        except Exception as error:
            error.add_note(f"seed {seed}, overlap {overlap}")
            raise
    return outcomes


@pytest.mark.parametrize("overlap", [0, 1])
def test_every_workload_gives_what_each_request_gives_alone(overlap: int) -> None:
    outcomes = run_seeds(overlap, NUM_SEEDS)
    assert sum(outcome.num_preemptions for outcome in outcomes) > 100
    assert sum(outcome.num_prefix_hits for outcome in outcomes) > 100
    assert sum(outcome.num_aborts for outcome in outcomes) > 100
    assert sum(outcome.num_forced for outcome in outcomes) > 1000
    assert sum(outcome.num_late for outcome in outcomes) > 100


def publish_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    emit = Scheduler._emit

    def emit_and_publish(self: Scheduler, request: Request, *args: object) -> int:
        count = emit(self, request, *args)  # type: ignore[arg-type]
        self._publish(request, request.num_computed + self._pool.page_size)
        return count

    monkeypatch.setattr(Scheduler, "_emit", emit_and_publish)


def free_pages_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    def reap(self: Scheduler, request: Request) -> None:
        self._drop_pages(request)
        if request.num_inflight == 0:
            del self._requests[request.id]
            if request.is_announced:
                self._ended.append(request.id)

    monkeypatch.setattr(Scheduler, "_reap", reap)


def forget_to_evict_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    def alloc(self: PagePool, count: int) -> tuple[int, ...] | None:
        if count > len(self._free):
            return None
        pages = tuple(self._free.popitem(last=False)[0] for _ in range(count))
        for page in pages:
            self._refs[page] = 1
        return pages

    monkeypatch.setattr(PagePool, "alloc", alloc)


def keep_counters_on_preemption(monkeypatch: pytest.MonkeyPatch) -> None:
    drop = Scheduler._drop_pages

    def drop_but_keep(self: Scheduler, request: Request) -> None:
        computed = request.num_computed
        drop(self, request)
        request.num_computed = min(computed, 1)

    monkeypatch.setattr(Scheduler, "_drop_pages", drop_but_keep)
    admit = Scheduler._admit

    def admit_and_keep(self: Scheduler, request: Request) -> bool:
        kept = request.num_computed
        admitted = admit(self, request)
        request.num_computed = max(request.num_computed, kept)
        return admitted

    monkeypatch.setattr(Scheduler, "_admit", admit_and_keep)


def key_without_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    page_key = PagePool.page_key
    monkeypatch.setattr(PagePool, "page_key", lambda self, _parent, tokens: page_key(self, b"", tokens))


def leave_nothing_to_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    admit = Scheduler._admit

    def admit_whole(self: Scheduler, request: Request) -> bool:
        admitted = admit(self, request)
        request.num_computed = request.num_published * self._pool.page_size
        return admitted

    monkeypatch.setattr(Scheduler, "_admit", admit_whole)


def match_one_page_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    match = PagePool.match

    def match_more(self: PagePool, keys: list[bytes]) -> tuple[int, ...]:
        pages = match(self, keys)
        return (*pages, next(iter(self._free))) if 0 < len(pages) < len(keys) else pages

    monkeypatch.setattr(PagePool, "match", match_more)


def leak_on_abort(monkeypatch: pytest.MonkeyPatch) -> None:
    acquire = PagePool.acquire

    def acquire_twice(self: PagePool, pages: tuple[int, ...]) -> None:
        acquire(self, pages)
        acquire(self, pages[:1])

    monkeypatch.setattr(PagePool, "acquire", acquire_twice)


def keep_forced_tokens_from_the_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = Scheduler.schedule
    monkeypatch.setattr(Scheduler, "schedule", lambda self: msgspec.structs.replace(schedule(self), forced=()))


def send_forced_tokens_of_ended_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    accept = Scheduler._accept

    def accept_and_send(self: Scheduler, request: Request, row: Row, sample: Sampled) -> Output:
        output = accept(self, request, row, sample)
        self._forced[request.id] = ForcedTokens(request.id, row.start + row.num_tokens + 1, output.token_ids[1:])
        return output

    monkeypatch.setattr(Scheduler, "_accept", accept_and_send)


def publish_forced_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    accept = Scheduler._accept

    def accept_and_publish(self: Scheduler, request: Request, row: Row, sample: Sampled) -> Output:
        output = accept(self, request, row, sample)
        if request.pages:
            self._publish(request, min(len(request.token_ids), len(request.pages) * self._pool.page_size))
        return output

    monkeypatch.setattr(Scheduler, "_accept", accept_and_publish)


def run_ahead_of_a_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    def wants_step(self: Request) -> bool:
        return self.num_computed < self.num_total < self.num_prompt + self.max_tokens

    monkeypatch.setattr(Request, "wants_step", property(wants_step))


def forget_late_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = Scheduler.commit

    def commit_and_forget(self: Scheduler, plan: Plan, sampled: list[Sampled | None]) -> list[Output]:
        outputs = commit(self, plan, sampled)
        for row, sample in zip(plan.rows, sampled, strict=True):
            if row.sample and sample is None and row.request_id in self._requests:
                self._requests[row.request_id].num_computed += 1
        return outputs

    monkeypatch.setattr(Scheduler, "commit", commit_and_forget)


PLANTED = [
    (publish_too_early, 0),
    (free_pages_in_flight, 1),
    (forget_to_evict_keys, 0),
    (keep_counters_on_preemption, 0),
    (key_without_parent, 0),
    (leave_nothing_to_compute, 0),
    (match_one_page_too_many, 0),
    (leak_on_abort, 0),
    (keep_forced_tokens_from_the_runner, 0),
    (send_forced_tokens_of_ended_requests, 0),
    (publish_forced_tokens, 0),
    (run_ahead_of_a_grammar, 1),
    (forget_late_rows, 0),
]


@pytest.mark.parametrize(("plant", "overlap"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_a_planted_bug_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], overlap: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, KeyError, IndexError, AttributeError, TypeError)):
        run_seeds(overlap, NUM_SEEDS)
