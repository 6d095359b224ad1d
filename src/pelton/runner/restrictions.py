"""Restrictions: which tokens a request biases, allows and forbids, as tensors that are made once.

Shapes: V vocabulary.
"""

import numpy as np
import numpy.typing as npt
import torch

from pelton.runner.bad_words import BadWords
from pelton.types import SamplingParams

_MAX_BIAS = 100.0


class Restrictions:
    """Of one request. The cost of a step does not depend on Python work for each of the tokens named."""

    def __init__(self, params: SamplingParams) -> None:
        biases = params.logit_bias or {}
        # +100 rules out all tokens but those with +100, -100 rules a token out.
        forced = [token for token, bias in biases.items() if bias >= _MAX_BIAS]
        values = [bias if bias > -_MAX_BIAS else -torch.inf for bias in biases.values()]
        self._forced = torch.tensor(forced) if forced else None
        self._biased = torch.tensor(list(biases), dtype=torch.int64), torch.tensor(values, dtype=torch.float32)
        self._allowed = None if params.allowed_token_ids is None else torch.tensor(params.allowed_token_ids)
        self._bad_words = BadWords(params.bad_words_ids) if params.bad_words_ids else None

    @classmethod
    def of(cls, params: SamplingParams) -> "Restrictions | None":
        """None for a request without any."""
        has_any = params.logit_bias or params.allowed_token_ids is not None or params.bad_words_ids
        return cls(params) if has_any else None

    def apply(self, logits: torch.Tensor, output: npt.NDArray[np.int64]) -> None:
        """In place on a row of logits [V], for the token after `output`."""
        device = logits.device
        if self._forced is not None:
            logits.fill_(-torch.inf)
            logits[self._forced.to(device)] = 0.0
        else:
            tokens, values = self._biased
            logits.index_add_(0, tokens.to(device), values.to(device))
        if self._allowed is not None:
            allowed = self._allowed.to(device)
            kept = logits[allowed]
            logits.fill_(-torch.inf)
            logits[allowed] = kept
        if self._bad_words is not None:
            forbidden = self._bad_words.completions(output)
            logits[torch.tensor(forbidden, dtype=torch.int64, device=device)] = -torch.inf
