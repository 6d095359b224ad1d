"""Scheduler: which request computes which positions in the next step. Integers only, no torch."""

from bisect import insort
from collections.abc import Iterable, Sequence

from pelton.sched.pages import PagePool
from pelton.sched.request import Request
from pelton.types import EngineStats, FinishReason, ForcedTokens, NewRequest, Output, Plan, Row, Sampled, SamplingParams


class Scheduler:
    """In-flight batching: every step packs decode rows and prefill chunks within one token budget.

    Decode rows are placed first; prefill chunks of running requests, then of waiting ones, fill the rest. Order is
    (priority, arrival) everywhere; the last in that order is preempted first and recomputes when it comes back.

    Steps may overlap: `schedule` may be called again before the previous plan is committed, and plans are committed
    in order. A request's pages are freed only when no launched step refers to them.
    """

    def __init__(
        self,
        pool: PagePool,
        *,
        max_batch_tokens: int,
        max_running: int,
        max_model_len: int,
        eos_token_ids: Iterable[int] = (),
        enable_prefix_caching: bool = True,
    ) -> None:
        self._pool = pool
        self._max_batch_tokens = max_batch_tokens
        self._max_running = max_running
        self._max_model_len = min(max_model_len, pool.num_pages * pool.page_size)
        self._eos_token_ids = frozenset(eos_token_ids)
        self._enable_prefix_caching = enable_prefix_caching
        self._requests: dict[int, Request] = {}
        self._waiting: list[Request] = []  # sorted, next to run first
        self._running: list[Request] = []  # sorted, first to run first
        self._held: list[Request] = []  # not to run before `release`
        self._ended: list[int] = []  # announced to the runner and gone since the last plan
        self._forced: dict[int, ForcedTokens] = {}  # appended since the last plan, by request
        self._num_arrived = 0
        self._num_steps = 0
        self._num_preemptions = 0
        self._num_prompt_tokens = 0
        self._num_generation_tokens = 0
        self._prefix_queries = 0
        self._prefix_hits = 0
        self._num_finished: dict[str, int] = {}

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    def add(
        self,
        request_id: int,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        salt: bytes = b"",
        held: bool = False,
    ) -> None:
        """Queue a request; a `held` one does not run before `release`.

        Raises:
            ValueError: the prompt is empty, or leaves no room for one output token (if it wants any) in the context or
                the pool.
        """
        if not prompt_ids:
            raise ValueError("the prompt is empty")
        room = self._max_model_len - len(prompt_ids)
        if room < (params.max_tokens != 0):
            raise ValueError(f"a prompt of {len(prompt_ids)} tokens leaves no room in {self._max_model_len} positions")
        max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        request = Request(request_id, list(prompt_ids), params, max_tokens, priority, salt)
        request.order = (priority, self._num_arrived)
        self._num_arrived += 1
        self._requests[request_id] = request
        insort(self._held if held else self._waiting, request, key=_order)

    def release(self, request_id: int) -> None:
        """Let a held request run, in the order of its arrival. One that has ended meanwhile is left alone."""
        request = self._requests.get(request_id)
        if request is not None and request in self._held:
            self._held.remove(request)
            insort(self._waiting, request, key=_order)

    def abort(self, request_id: int) -> Output | None:
        """End a request at any time; None when it is already gone."""
        return self.fail(request_id, "abort")

    def fail(
        self, request_id: int, reason: FinishReason, error: str | None = None, error_status: int = 500
    ) -> Output | None:
        """End a request with `reason` ("abort" or "error"); None when it is already gone."""
        request = self._requests.get(request_id)
        if request is None or request.finish_reason is not None:
            return None
        self._finish(request, reason)
        return Output(
            request_id,
            finish_reason=reason,
            num_cached_tokens=request.num_cached,
            error=error,
            error_status=error_status,
        )

    def schedule(self) -> Plan:
        """Plan the next step; a plan without rows is empty and means that nothing can be launched now."""
        budget = self._max_batch_tokens
        planned: set[int] = set()
        decode_rows: list[Row] = []
        prefill_rows: list[Row] = []
        new: list[NewRequest] = []
        decoding, prefilling = self._split_running()
        for requests, rows in ((decoding, decode_rows), (prefilling, prefill_rows)):
            for request in requests:
                if budget == 0:
                    break
                # A preemption for an earlier row may have taken this one off the running list.
                if request.pages and self._grow(request, budget, planned):
                    budget -= self._emit(request, budget, rows, new, planned)
        while budget and self._waiting and len(self._running) < self._max_running and self._admit(self._waiting[0]):
            request = self._waiting.pop(0)
            insort(self._running, request, key=_order)
            grown = self._grow(request, budget, planned, may_preempt=False)
            assert grown, "admission promised these pages"
            budget -= self._emit(request, budget, prefill_rows, new, planned)
        if not planned:
            return Plan(())
        self._num_steps += 1
        ended, self._ended = tuple(self._ended), []
        forced, self._forced = tuple(self._forced.values()), {}
        return Plan((*prefill_rows, *decode_rows), tuple(new), ended, forced)

    def commit(self, plan: Plan, sampled: Sequence[Sampled | None]) -> list[Output]:
        """Apply one finished step: `sampled` has an entry a row, None where the row did not sample.

        A row that should have sampled and did not computes its last position again in the next step.
        """
        outputs: list[Output] = []
        for row, sample in zip(plan.rows, sampled, strict=True):
            request = self._requests[row.request_id]
            request.num_inflight -= 1
            request.num_pending -= row.sample
            if request.finish_reason is not None:  # ended while this step was in flight
                self._reap(request)
                continue
            if not row.sample:
                outputs += self._advance(request, row, sample)
                continue
            if sample is None:
                request.num_computed -= 1
                self._publish(request, row.start + row.num_tokens - 1)
                continue
            outputs.append(self._accept(request, row, sample))
        return outputs

    def stats(self) -> EngineStats:
        size = self._pool.page_size
        unused = sum(len(request.pages) * size - request.num_computed for request in self._requests.values())
        return EngineStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting) + len(self._held),
            num_pages=self._pool.num_pages,
            num_used_pages=self._pool.num_used,
            page_size=size,
            num_used_slots=self._pool.num_used * size - unused,
            num_steps=self._num_steps,
            num_preemptions=self._num_preemptions,
            num_prompt_tokens=self._num_prompt_tokens,
            num_generation_tokens=self._num_generation_tokens,
            prefix_cache_queries=self._prefix_queries,
            prefix_cache_hits=self._prefix_hits,
            num_aborted=self._num_finished.get("abort", 0),
            num_finished=dict(self._num_finished),
        )

    def check(self) -> None:
        """Assert the invariants of queues, counters and pages."""
        self._pool.check([request.pages for request in self._requests.values()])
        queued = [*self._waiting, *self._running, *self._held]
        assert len({request.id for request in queued}) == len(queued), "a request is queued twice"
        for request in self._requests.values():
            assert (request.finish_reason is None) == (request in queued)
            assert request.num_computed <= len(request.pages) * self._pool.page_size
        assert all(not request.pages for request in (*self._waiting, *self._held))

    def _split_running(self) -> tuple[list[Request], list[Request]]:
        """The running requests that have something to compute: those that decode, and those that catch up."""
        decoding: list[Request] = []
        prefilling: list[Request] = []
        for request in self._running:
            if request.wants_step:
                (decoding if request.is_decoding else prefilling).append(request)
        return decoding, prefilling

    def _admit(self, request: Request) -> bool:
        """Match the prefix and take its pages if the whole request as it stands fits, with head-room.

        The head-room, a page for each running request, is the hysteresis: what was preempted comes back only when
        the others can go on for a page's worth of steps. An empty pool admits anything that `add` let in.
        """
        matched = self._match_prefix(request)
        promised = sum(self._pool.pages_for(other.num_total) - len(other.pages) for other in self._running)
        needed = self._pool.pages_for(request.num_total) - len(matched) + self._pool.num_free_among(matched)
        if needed + promised + len(self._running) > self._pool.num_free:
            return False
        self._pool.acquire(matched)
        request.pages = matched
        request.num_published = len(matched)
        # At least one position is left to compute, for its logits. Where all pages of a prompt were found, it is the
        # last one: it writes into the last page, which others may share, the bits that are there already.
        request.num_computed = min(len(matched) * self._pool.page_size, len(request.token_ids) - 1)
        if not request.is_announced:
            request.num_cached = request.num_computed
            self._prefix_queries += request.num_prompt
            self._prefix_hits += request.num_computed
            self._num_prompt_tokens += request.num_prompt
        return True

    def _grow(self, request: Request, budget: int, planned: set[int], *, may_preempt: bool = True) -> bool:
        """Give the request the pages of its next chunk, preempting later ones if need be."""
        end = request.num_computed + min(budget, request.num_missing)
        needed = self._pool.pages_for(end) - len(request.pages)
        if needed <= 0:
            return True
        pages = self._pool.alloc(needed)
        while pages is None:
            if not may_preempt or not self._preempt_one(request, planned):
                return False
            pages = self._pool.alloc(needed)
        request.pages += pages
        return True

    def _emit(self, request: Request, budget: int, rows: list[Row], new: list[NewRequest], planned: set[int]) -> int:
        num_missing = request.num_missing
        num_tokens = min(budget, num_missing)
        sample = num_tokens == num_missing and request.max_tokens > 0
        rows.append(Row(request.id, request.num_computed, num_tokens, request.pages, sample))
        if not request.is_announced:
            request.is_announced = True
            new.append(NewRequest(request.id, tuple(request.token_ids[: request.num_prompt]), request.params))
        planned.add(request.id)
        request.num_computed += num_tokens
        request.num_inflight += 1
        request.num_pending += sample
        return num_tokens

    def _preempt_one(self, keep: Request, planned: set[int]) -> bool:
        for victim in reversed(self._running):
            if victim.order < keep.order:
                return False
            if victim is not keep and victim.id not in planned and victim.num_inflight == 0:
                self._running.remove(victim)
                self._drop_pages(victim)
                insort(self._waiting, victim, key=_order)
                self._num_preemptions += 1
                return True
        return False

    def _match_prefix(self, request: Request) -> tuple[int, ...]:
        """Cached pages of the request's leading tokens."""
        params = request.params
        if not self._enable_prefix_caching or params.prompt_logprobs is not None or params.pooling == "mean":
            return ()  # what is in the cache is not computed, and so has no logits and no hidden states
        self._extend_keys(request, len(request.token_ids))
        return self._pool.match(request.page_keys)

    def _extend_keys(self, request: Request, num_tokens: int) -> None:
        size = self._pool.page_size
        for page in range(len(request.page_keys), num_tokens // size):
            parent = request.page_keys[-1] if request.page_keys else self._pool.root_key(request.salt)
            tokens = request.token_ids[page * size : (page + 1) * size]
            request.page_keys.append(self._pool.page_key(parent, tokens))

    def _publish(self, request: Request, num_computed: int) -> None:
        """Enter the pages that are full, computed and committed into the prefix index."""
        size = self._pool.page_size
        if num_computed < (request.num_published + 1) * size or not self._enable_prefix_caching:
            return
        num_known = min(num_computed, len(request.token_ids))
        num_full = num_known // size
        self._extend_keys(request, num_known)
        for page in range(request.num_published, num_full):
            self._pool.publish(request.pages[page], request.page_keys[page])
        request.num_published = num_full

    def _advance(self, request: Request, row: Row, scored: Sampled | None) -> list[Output]:
        """Take note of a row that did not sample: what it says of the prompt, and the end of a request of no output."""
        self._publish(request, row.start + row.num_tokens)
        if scored is not None and scored.error is not None:
            return [self._fail_sampled(request, scored)]
        is_last = request.max_tokens == 0 and row.start + row.num_tokens == request.num_prompt
        reason = None if not is_last else "length" if request.params.pooling is None else "stop"
        if reason is not None:
            self._finish(request, reason)
        elif scored is None:
            return []
        return [
            Output(
                request.id,
                finish_reason=reason,
                num_cached_tokens=request.num_cached,
                prompt_logprobs=None if scored is None else scored.prompt_logprobs,
                vector=None if scored is None else scored.vector,
            )
        ]

    def _fail_sampled(self, request: Request, sample: Sampled) -> Output:
        self._finish(request, "error")
        return Output(request.id, finish_reason="error", error=sample.error, error_status=sample.error_status)

    def _accept(self, request: Request, row: Row, sample: Sampled) -> Output:
        """Append a sampled token and those forced after it, and end the request with the first that is its last one."""
        if sample.error is not None:
            return self._fail_sampled(request, sample)
        num_before = len(request.token_ids)
        reason, stop_token = None, None
        for token in (sample.token_id, *sample.forced_ids):
            request.token_ids.append(token)
            reason, stop_token = self._finish_reason(request, token)
            if reason is not None:
                break
        token_ids = tuple(request.token_ids[num_before:])
        request.num_forced = len(token_ids) - 1
        self._num_generation_tokens += len(token_ids)
        self._publish(request, row.start + row.num_tokens)
        if reason is not None:
            self._finish(request, reason)
        elif request.num_forced:
            self._forced[request.id] = ForcedTokens(request.id, num_before + 1, token_ids[1:])
        logprobs = None if sample.logprobs is None else (sample.logprobs,)
        return Output(
            request.id,
            token_ids,
            logprobs,
            reason,
            stop_token,
            request.num_cached,
            prompt_logprobs=sample.prompt_logprobs,
        )

    def _finish_reason(self, request: Request, token: int) -> tuple[FinishReason | None, int | None]:
        params = request.params
        if request.num_output >= params.min_tokens:
            # Only where its grammar cannot go on does a request that ignores end-of-sequence come to it.
            if token in self._eos_token_ids and not (params.ignore_eos and params.grammar is None):
                return "stop", None
            if token in params.stop_token_ids:
                return "stop", token
        if request.num_output >= request.max_tokens:
            return "length", None
        return None, None

    def _finish(self, request: Request, reason: FinishReason) -> None:
        queues = (self._running, self._waiting, self._held)
        next(queue for queue in queues if request in queue).remove(request)
        request.finish_reason = reason
        self._num_finished[reason] = self._num_finished.get(reason, 0) + 1
        self._reap(request)

    def _reap(self, request: Request) -> None:
        """Free an ended request once no launched step refers to its pages."""
        if request.num_inflight == 0:
            self._drop_pages(request)
            del self._requests[request.id]
            self._forced.pop(request.id, None)
            if request.is_announced:
                self._ended.append(request.id)

    def _drop_pages(self, request: Request) -> None:
        self._pool.release(request.pages)
        request.pages = ()
        request.num_computed = 0
        request.num_published = 0


def _order(request: Request) -> tuple[int, int]:
    return request.order
