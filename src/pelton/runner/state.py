"""What a runner remembers of a request between steps: its tokens and how to sample them."""

import numpy as np
import numpy.typing as npt

from pelton.runner.restrictions import Restrictions
from pelton.types import NewRequest, SamplingParams, TokenLogprobs

TokenArray = npt.NDArray[np.int64]


class RequestState:
    """Tokens by position. The runner samples them itself, so a Plan carries no tokens after a request's first."""

    def __init__(self, new: NewRequest) -> None:
        self.params: SamplingParams = new.params
        self.num_prompt = len(new.prompt_ids)
        self.num_scored = 0  # leading positions whose predictions of the prompt are reported
        self.scored: tuple[TokenLogprobs, ...] = ()  # of the prompt, and not reported yet
        self.restrictions = Restrictions.of(new.params)
        self._tokens: TokenArray = np.empty(self.num_prompt + 64, dtype=np.int64)
        self._tokens[: self.num_prompt] = new.prompt_ids

    def span(self, start: int, stop: int) -> TokenArray:
        """The tokens of positions start to stop; a view."""
        return self._tokens[start:stop]

    def token(self, position: int) -> int:
        return self._tokens.item(position)

    def output(self, stop: int) -> TokenArray:
        """The output tokens before position `stop`; a view."""
        return self._tokens[self.num_prompt : stop]

    def put(self, position: int, token_id: int) -> None:
        """Record a sampled or forced token. Doing it again for the same position is fine: a step may be run again."""
        if position >= len(self._tokens):
            grown = np.empty(2 * len(self._tokens), dtype=np.int64)
            grown[: len(self._tokens)] = self._tokens
            self._tokens = grown
        self._tokens[position] = token_id
