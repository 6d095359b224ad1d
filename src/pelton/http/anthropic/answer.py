"""What streamed and whole messages have in common: how they begin, why they end, what they cost."""

from http import HTTPStatus

from pelton.errors import RequestError
from pelton.http.anthropic.responses import Message, MessageDelta, MessageUsage, StopDelta, StopReason
from pelton.http.openai.generation import Generation
from pelton.http.openai.responses import StopReason as MatchedStop
from pelton.http.openai.responses import Usage


def begun_message(job: Generation, num_cached_tokens: int) -> Message:
    """A message without content."""
    usage = _usage(job.num_prompt_tokens, num_cached_tokens, 0)
    return Message(id=job.id, model=job.model, content=[], usage=usage)


def message_delta(usage: Usage, matched: MatchedStop, finish_reason: str, *, made_calls: bool) -> MessageDelta:
    """What is known at the end.

    Args:
        matched: the stop string, if one ended the message.
        finish_reason: as the OpenAI API has it.

    Raises:
        RequestError: the message was ended by the server, for which the Messages API has no stop reason.
    """
    cached = usage.prompt_tokens_details.cached_tokens
    delta = StopDelta(_stop_reason(matched, finish_reason, made_calls=made_calls), _stop_sequence(matched))
    return MessageDelta(delta, _usage(usage.prompt_tokens, cached, usage.completion_tokens))


def _usage(num_prompt_tokens: int, num_cached_tokens: int, num_output_tokens: int) -> MessageUsage:
    return MessageUsage(
        input_tokens=num_prompt_tokens - num_cached_tokens,
        cache_read_input_tokens=num_cached_tokens,
        output_tokens=num_output_tokens,
    )


def _stop_sequence(matched: MatchedStop) -> str | None:
    return matched if isinstance(matched, str) else None


def _stop_reason(matched: MatchedStop, finish_reason: str, *, made_calls: bool) -> StopReason:
    if finish_reason == "abort":
        raise RequestError("The server has ended this message", status=HTTPStatus.SERVICE_UNAVAILABLE)
    if isinstance(matched, str):
        return "stop_sequence"
    if finish_reason == "length":
        return "max_tokens"
    return "tool_use" if made_calls else "end_turn"
