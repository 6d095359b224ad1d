"""Request: the only mutable per-request state. The scheduler owns it."""

from dataclasses import dataclass, field

from pelton.types import FinishReason, SamplingParams


@dataclass(slots=True, eq=False)
class Request:
    """Counters, not phases: whatever is left to do follows from "num_computed must catch up with num_total".

    `token_ids` is the prompt, then every sampled token that the host has seen. `salt` separates prefix caches.
    `max_tokens` is already clamped to the model's context; 0 computes the prompt and ends.
    """

    id: int
    token_ids: list[int]
    params: SamplingParams
    max_tokens: int
    priority: int = 0
    salt: bytes = b""

    num_prompt: int = field(init=False)
    max_total: int = field(init=False)  # positions at which no step is wanted any more
    order: tuple[int, int] = (0, 0)  # (priority, arrival): smaller runs first, larger is preempted first
    pages: tuple[int, ...] = ()
    page_keys: list[bytes] = field(default_factory=list[bytes])  # prefix keys of the leading full pages
    num_published: int = 0  # leading pages already entered into the prefix index
    num_computed: int = 0  # positions covered by launched steps
    num_pending: int = 0  # tokens sampled on the device, not yet seen by the host
    num_inflight: int = 0  # launched steps not yet committed
    num_forced: int = 0  # tokens that followed the last sampled one without a step of their own
    num_cached: int = 0  # prompt tokens found in the prefix cache at first admission
    is_announced: bool = False  # the runner knows it
    finish_reason: FinishReason | None = None

    def __post_init__(self) -> None:
        self.num_prompt = len(self.token_ids)
        self.max_total = self.num_prompt + max(self.max_tokens, 1)

    @property
    def num_total(self) -> int:
        """Positions that exist: prompt, seen output, and output still on the device."""
        return len(self.token_ids) + self.num_pending

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - self.num_prompt

    @property
    def num_missing(self) -> int:
        """Positions that exist and are not computed: while decoding the last token and those forced after it."""
        return len(self.token_ids) + self.num_pending - self.num_computed

    @property
    def is_decoding(self) -> bool:
        return self.num_missing <= 1 + self.num_forced

    @property
    def wants_step(self) -> bool:
        """Whether there is a position to compute and an output left to sample or only the prompt wanted.

        What a grammar allows after a token is known when the host has seen it: such a request has no step in advance.
        """
        if self.num_pending and self.params.grammar is not None:
            return False
        num_total = len(self.token_ids) + self.num_pending
        return self.num_computed < num_total < self.max_total
