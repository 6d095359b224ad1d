"""OpenAI's Python client reads streamed and whole calls into the types of the caller."""

import asyncio
from typing import Literal

import httpx
import openai
from pydantic import BaseModel

from chat_turns import TWO, scripted
from fakes import Client


class City(BaseModel):
    city: Literal["Bern", "Rome"]


TOOLS = [openai.pydantic_function_tool(City, name=name) for name in ("get_weather", "get_time")]
REQUEST = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "tools": TOOLS}


def client_of(client: Client) -> openai.AsyncOpenAI:
    transport = httpx.ASGITransport(app=client.app, raise_app_exceptions=False)
    http_client = httpx.AsyncClient(transport=transport, base_url="http://test")
    return openai.AsyncOpenAI(base_url="http://test/v1", api_key="none", http_client=http_client)


def test_parse_gives_the_arguments_as_models():
    _, client = scripted(TWO)

    async def parsed() -> list[object]:
        async with client_of(client) as api:
            completion = await api.chat.completions.parse(**REQUEST)
        calls = completion.choices[0].message.tool_calls or []
        return [call.function.parsed_arguments for call in calls]

    assert asyncio.run(parsed()) == [City(city="Bern"), City(city="Rome")]


def test_the_stream_helper_accumulates_the_same_calls():
    _, client = scripted("Let me see.\n" + TWO, num_tokens_per_delta=3)

    async def streamed() -> tuple[list[tuple[str, str]], list[object], str | None]:
        async with client_of(client) as api, api.chat.completions.stream(**REQUEST) as stream:
            events = [event async for event in stream]
            message = (await stream.get_final_completion()).choices[0].message
        calls = message.tool_calls or []
        done = [(e.name, e.arguments) for e in events if e.type == "tool_calls.function.arguments.done"]
        return done, [call.function.parsed_arguments for call in calls], message.content

    done, parsed, content = asyncio.run(streamed())
    assert done == [("get_weather", '{"city": "Bern"}'), ("get_time", '{"city": "Rome"}')]
    assert parsed == [City(city="Bern"), City(city="Rome")]
    assert content == "Let me see."
