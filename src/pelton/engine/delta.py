"""From what the engine gave to what a client sees."""

from http import HTTPStatus

from pelton.engine.text import TextStream
from pelton.errors import RequestError
from pelton.types import Delta, Output


def to_delta(text: TextStream, output: Output) -> Delta:
    """Tokens to text. The token that ended the output (end-of-sequence, a stop token) counts but gives no text."""
    if output.finish_reason == "error":
        raise request_error(output)
    step = text.push(output.token_ids, ended_by_token=output.finish_reason == "stop")
    if step.stop is not None:
        logprobs = None if output.logprobs is None else output.logprobs[: step.num_tokens]
        return Delta(
            text=step.text,
            token_ids=output.token_ids[: step.num_tokens],
            logprobs=logprobs,
            finish_reason="stop",
            stop_reason=step.stop,
            num_cached_tokens=output.num_cached_tokens,
            prompt_logprobs=output.prompt_logprobs,
        )
    return Delta(
        text=step.text + (text.finish() if output.finish_reason else ""),
        token_ids=output.token_ids,
        logprobs=output.logprobs,
        finish_reason=output.finish_reason,
        stop_reason=output.stop_reason,
        num_cached_tokens=output.num_cached_tokens,
        prompt_logprobs=output.prompt_logprobs,
        vector=output.vector,
    )


def request_error(output: Output) -> RequestError:
    """The error that ended a request, as its client sees it."""
    prefix = "the request failed: " if output.error_status >= HTTPStatus.INTERNAL_SERVER_ERROR else ""
    return RequestError(f"{prefix}{output.error}", status=output.error_status)
