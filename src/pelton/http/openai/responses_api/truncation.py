"""truncation: auto, a conversation without its oldest turns where the model's context does not hold all of it."""

import msgspec

from pelton.http.openai.prompts import chat_prompt
from pelton.http.openai.requests import ChatBody
from pelton.http.service import Service
from pelton.types import JsonObject

_PLAUSIBLE_CHARACTERS_PER_TOKEN = 16


async def fitting_messages(service: Service, chat: ChatBody) -> list[JsonObject]:
    """The chat's messages, without as many of the oldest turns as it takes to leave room for the output.

    That room is `max_completion_tokens`, by default a quarter of the context. A turn begins with a message of the user;
    the system's message and the last turn stay, even if they alone are too long.
    """
    messages = chat.messages or []
    context = service.max_model_len
    most = context - min(chat.max_completion_tokens or context // 4, context - 1)
    num_kept = 1 if messages[0]["role"] == "system" else 0
    system, rest = messages[:num_kept], messages[num_kept:]
    starts = [0, *(position for position, message in enumerate(rest) if position and message["role"] == "user")]
    starts = _plausible(rest, starts, most * _PLAUSIBLE_CHARACTERS_PER_TOKEN)

    async def fits(start: int) -> bool:
        shorter = msgspec.structs.replace(chat, messages=[*system, *rest[start:]])
        token_ids = await chat_prompt(service, shorter, max_model_len=None, reasoning_effort=chat.reasoning_effort)
        return len(token_ids) <= most

    if len(starts) == 1 or await fits(starts[0]):
        return [*system, *rest[starts[0] :]]
    low, high = 0, len(starts) - 1  # the first start that fits comes after low, and at high at the latest
    while high - low > 1:
        middle = (low + high) // 2
        if await fits(starts[middle]):
            high = middle
        else:
            low = middle
    return [*system, *rest[starts[high] :]]


def _plausible(messages: list[JsonObject], starts: list[int], num_characters: int) -> list[int]:
    """The starts, at least the last, behind which there is not far too much text: no need to tokenize megabytes."""
    left = num_characters
    earliest = len(messages)
    while earliest > 0 and left >= 0:
        earliest -= 1
        left -= len(messages[earliest]["content"])
    return [start for start in starts if start >= earliest] or starts[-1:]
