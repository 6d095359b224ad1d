"""A sequential reference for the scheduling core, and a runner that computes tokens from what lies in the KV slots."""

from collections.abc import Collection, Sequence

from pelton.types import Plan, Sampled

EOS = 0
VOCABULARY = 23


def next_token(context: Sequence[int]) -> int:
    """A pure function of the whole context: any wrong, missing or stale slot changes the output."""
    state = 17
    for token in context:
        state = (state * 1103515245 + token + 12345) % 2**31
    return (state >> 8) % VOCABULARY


def forced_after(context: Sequence[int]) -> list[int]:
    """What a grammar would append after the last token of a context: often nothing, up to six tokens, maybe an end."""
    forced: list[int] = []
    for _ in range(next_token([*context, 1]) - 16):
        forced.append(next_token([*context, *forced, 2]))
    return forced


def reference(prompt: Sequence[int], max_tokens: int, *, constrained: bool = False) -> list[int]:
    """What the request gives when it runs alone."""
    output: list[int] = []
    while len(output) < max_tokens:
        context = [*prompt, *output]
        output.append(next_token(context))
        if constrained:
            output += forced_after([*prompt, *output])
        if EOS in output:
            return output[: min(output.index(EOS) + 1, max_tokens)]
    return output[:max_tokens]


class SlotRunner:
    """Keeps the token of every KV slot, and what a runner keeps of a request: prompt, sampled and forced tokens."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        self._slots: list[list[int | None]] = [[None] * page_size for _ in range(num_pages)]
        self._page_size = page_size
        self.tokens: dict[int, dict[int, int]] = {}

    def run(self, plan: Plan, late: Collection[int] = ()) -> list[Sampled | None]:
        """The rows of `late` requests do not sample."""
        for request_id in plan.ended:
            del self.tokens[request_id]
        for new in plan.new:
            self.tokens[new.request_id] = dict(enumerate(new.prompt_ids))
        for forced in plan.forced:
            known = self.tokens[forced.request_id]
            assert forced.position == len(known), "forced tokens do not follow the sampled one"
            known.update(enumerate(forced.token_ids, start=forced.position))
        results: list[Sampled | None] = []
        for row in plan.rows:
            assert row.num_tokens > 0
            known = self.tokens[row.request_id]
            for position in range(row.start, row.start + row.num_tokens):
                self._slots[row.pages[position // self._page_size]][position % self._page_size] = known[position]
            end = row.start + row.num_tokens
            context = [self._slots[row.pages[p // self._page_size]][p % self._page_size] for p in range(end)]
            if not row.sample or row.request_id in late:
                results.append(None)
                continue
            assert None not in context, "read a slot that was never written"
            known[end] = next_token(context)  # type: ignore[arg-type]
            results.append(Sampled(known[end]))
        return results
