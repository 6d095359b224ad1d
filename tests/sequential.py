"""A sequential reference for the scheduling core, and a runner that computes tokens from what lies in the KV slots."""

from collections.abc import Sequence

from pelton.types import Plan, Sampled

EOS = 0
VOCABULARY = 23


def next_token(context: Sequence[int]) -> int:
    """A pure function of the whole context: any wrong, missing or stale slot changes the output."""
    state = 17
    for token in context:
        state = (state * 1103515245 + token + 12345) % 2**31
    return (state >> 8) % VOCABULARY


def reference(prompt: Sequence[int], max_tokens: int) -> list[int]:
    """What the request gives when it runs alone."""
    context, output = list(prompt), []
    while len(output) < max_tokens:
        token = next_token(context)
        context.append(token)
        output.append(token)
        if token == EOS:
            break
    return output


class SlotRunner:
    """Keeps the token of every KV slot, and of every request what a real runner keeps: prompt and sampled tokens."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        self._slots: list[list[int | None]] = [[None] * page_size for _ in range(num_pages)]
        self._page_size = page_size
        self.tokens: dict[int, dict[int, int]] = {}

    def run(self, plan: Plan) -> list[Sampled | None]:
        for request_id in plan.ended:
            del self.tokens[request_id]
        for new in plan.new:
            self.tokens[new.request_id] = dict(enumerate(new.prompt_ids))
        results: list[Sampled | None] = []
        for row in plan.rows:
            assert row.num_tokens > 0
            known = self.tokens[row.request_id]
            for position in range(row.start, row.start + row.num_tokens):
                self._slots[row.pages[position // self._page_size]][position % self._page_size] = known[position]
            end = row.start + row.num_tokens
            context = [self._slots[row.pages[p // self._page_size]][p % self._page_size] for p in range(end)]
            if not row.sample:
                results.append(None)
                continue
            assert None not in context, "read a slot that was never written"
            known[end] = next_token(context)  # type: ignore[arg-type]
            results.append(Sampled(known[end]))
        return results
