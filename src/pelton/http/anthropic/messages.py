"""POST /v1/messages and /v1/messages/count_tokens."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pelton.http.anthropic.answer import begun_message, message_delta
from pelton.http.anthropic.blocks import BlockWriter, content_blocks
from pelton.http.anthropic.errors import MESSAGES_PATH, MessagesError
from pelton.http.anthropic.requests import CountTokensBody, MessagesBody
from pelton.http.anthropic.responses import Message, StreamEvent, TokenCount
from pelton.http.anthropic.stream import message_stream
from pelton.http.anthropic.translate import chat_body, prompt_body
from pelton.http.body import read_json
from pelton.http.connection import while_connected
from pelton.http.openai.chat import chat_job
from pelton.http.openai.models import check_model
from pelton.http.openai.prompts import chat_prompt
from pelton.http.openai.turns import ChatJob, collect_turns
from pelton.http.routes import EVENTS, JSON, Route
from pelton.http.service import Service
from pelton.http.tools.definitions import tool_use

_decoder = msgspec.json.Decoder(MessagesBody)
_count_decoder = msgspec.json.Decoder(CountTokensBody)
_encode = msgspec.json.Encoder().encode


async def create_message(service: Service, request: Request) -> Response:
    """Answer a conversation; streamed or whole."""
    body = await read_json(request, _decoder)
    check_model(service, body.model)
    job = await chat_job(service, request, chat_body(body), prefix="msg_")
    writer = BlockWriter(shows_thinking=body.thinking is None or body.thinking.display != "omitted")
    if body.stream:
        return message_stream(service, job, writer)
    message = await while_connected(request.receive, _whole(service, job, writer))
    return Response(_encode(message), media_type="application/json")


async def count_tokens(service: Service, request: Request) -> Response:
    """How many tokens the prompt of a conversation has; longer ones than the model takes are counted too."""
    body = await read_json(request, _count_decoder)
    check_model(service, body.model)
    chat = prompt_body(body)
    if tool_use(chat).mode == "none":
        chat.tools = None
    token_ids = await chat_prompt(service, chat, max_model_len=None, reasoning_effort=chat.reasoning_effort)
    return Response(_encode(TokenCount(len(token_ids))), media_type="application/json")


ROUTES = (
    Route(
        method="POST",
        path=MESSAGES_PATH,
        endpoint=create_message,
        summary="Answer a conversation, as Anthropic's API does",
        body=MessagesBody,
        answers={JSON: Message, EVENTS: StreamEvent},
        error_body=MessagesError,
    ),
    Route(
        method="POST",
        path=f"{MESSAGES_PATH}/count_tokens",
        endpoint=count_tokens,
        summary="How many tokens the prompt of a conversation has",
        body=CountTokensBody,
        answers={JSON: TokenCount},
        error_body=MessagesError,
    ),
)


async def _whole(service: Service, job: ChatJob, writer: BlockWriter) -> Message:
    (turn,), usage = await collect_turns(service, job)
    message = begun_message(job.generation, usage.prompt_tokens_details.cached_tokens)
    message.content = content_blocks(turn.parts, writer)
    end = message_delta(usage, turn.choice.stop_reason, turn.finish_reason or "", made_calls=writer.made_calls)
    message.stop_reason, message.stop_sequence = end.delta.stop_reason, end.delta.stop_sequence
    message.usage = end.usage
    return message
