"""What a request must be before an engine sees it."""

import itertools
from collections.abc import Iterable, Sequence

from pelton.errors import RequestError
from pelton.types import SamplingParams


def check_request(prompt_ids: Sequence[int], params: SamplingParams, vocab_size: int, max_model_len: int) -> None:
    """Raise RequestError if the prompt is empty, fills the context, or if an id anywhere is out of vocabulary."""
    if not prompt_ids:
        raise RequestError("the prompt is empty: it has no tokens to continue from", param="prompt")
    if len(prompt_ids) + (params.max_tokens != 0) > max_model_len:
        raise RequestError(
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt has "
            f"{len(prompt_ids)} tokens, which leaves no room for output. Please shorten the prompt.",
            param="prompt",
        )
    _check_vocabulary("prompt", (min(prompt_ids), max(prompt_ids)), vocab_size)
    _check_vocabulary("logit_bias", params.logit_bias or (), vocab_size)
    _check_vocabulary("allowed_token_ids", params.allowed_token_ids or (), vocab_size)
    _check_vocabulary("stop_token_ids", params.stop_token_ids, vocab_size)
    _check_vocabulary("bad_words", itertools.chain.from_iterable(params.bad_words_ids), vocab_size)


def _check_vocabulary(field: str, token_ids: Iterable[int], vocab_size: int) -> None:
    outside = [token for token in token_ids if not 0 <= token < vocab_size]
    if outside:
        raise RequestError(
            f"{field}: token ids {outside[:10]} are out of vocabulary, which has {vocab_size} tokens", param=field
        )
