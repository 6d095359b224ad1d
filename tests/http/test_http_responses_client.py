"""OpenAI's own client, as its documentation uses it, over a server with a scripted engine."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from bracketed import bracketed
from fakes import FakeEngine, Running, serving

Use = Callable[[openai.AsyncOpenAI], Awaitable[None]]


class Person(BaseModel):
    name: str
    age: int


def using(engine: FakeEngine, use: Use) -> None:
    async def scenario(running: Running) -> None:
        async with openai.AsyncOpenAI(
            base_url=f"{running.client.base_url}/v1", api_key="x", max_retries=0, _strict_response_validation=True
        ) as client:
            await use(client)

    assert serving(engine, scenario) == 0


def scripted_engine(text: str, **options: Any) -> FakeEngine:
    engine = FakeEngine(**options)
    engine.script = engine.ids(text)
    return engine


def test_create_retrieve_go_on_and_delete():
    engine = scripted_engine("hello world")

    async def use(client: openai.AsyncOpenAI) -> None:
        first = await client.responses.create(model="tiny", input="hi", instructions="be brief")
        assert first.output_text == "hello world" and first.status == "completed"
        second = await client.responses.create(model="tiny", input="more", previous_response_id=first.id)
        assert second.previous_response_id == first.id
        assert await client.responses.retrieve(second.id) == second
        items = [item async for item in client.responses.input_items.list(second.id, order="asc", limit=1)]
        assert [item.type for item in items] == ["message"] * 3
        counted = await client.responses.input_tokens.count(model="tiny", input="hi", instructions="be brief")
        assert counted.input_tokens == first.usage.input_tokens
        await client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError, match=r"Response with id '.*' not found"):
            await client.responses.retrieve(first.id)
        with pytest.raises(openai.BadRequestError) as error:
            await client.responses.create(model="tiny", input="hi", previous_response_id=first.id)
        assert (error.value.param, error.value.code) == ("previous_response_id", "previous_response_not_found")

    using(engine, use)


def test_the_sync_client_in_a_thread():
    async def scenario(running: Running) -> None:
        def use() -> str:
            with (
                openai.OpenAI(base_url=f"{running.client.base_url}/v1", api_key="x") as client,
                client.responses.create(model="tiny", input="hi", stream=True) as stream,
            ):
                return "".join(event.delta for event in stream if event.type == "response.output_text.delta")

        assert await asyncio.to_thread(use) == "hello world"

    assert serving(scripted_engine("hello world"), scenario) == 0


def test_the_stream_helper(monkeypatch: pytest.MonkeyPatch):
    bracketed(monkeypatch)
    engine = scripted_engine('[hm]hello<f:{"a": 1}>')

    async def use(client: openai.AsyncOpenAI) -> None:
        tools: Any = [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}]
        async with client.responses.stream(model="tiny", input="hi", tools=tools) as stream:
            events = [event async for event in stream]
            response = await stream.get_final_response()
        assert [event.sequence_number for event in events] == list(range(len(events)))
        snapshots = [event.snapshot for event in events if event.type == "response.output_text.delta"]
        assert snapshots == ["hello"]
        arguments = [event.snapshot for event in events if event.type == "response.function_call_arguments.delta"]
        assert arguments[-1] == '{"a": 1}'
        assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
        assert response.output[2].parsed_arguments == {"a": 1}
        assert response.usage.output_tokens_details.reasoning_tokens == 2

    using(engine, use)


def test_parse_with_pydantic(monkeypatch: pytest.MonkeyPatch):
    chats = bracketed(monkeypatch)
    engine = scripted_engine('{"name": "Ann", "age": 7}')

    async def use(client: openai.AsyncOpenAI) -> None:
        response = await client.responses.parse(model="tiny", input="who?", text_format=Person)
        assert response.output_parsed == Person(name="Ann", age=7)
        async with client.responses.stream(model="tiny", input="who?", text_format=Person) as stream:
            done = [event.parsed async for event in stream if event.type == "response.output_text.done"]
        assert done == [Person(name="Ann", age=7)]

    using(engine, use)
    assert chats[0].response_format is not None
    assert chats[0].response_format["json_schema"]["schema"]["required"] == ["name", "age"]


def test_background_cancel_and_resumed_streams():
    engine = scripted_engine("abcdefghij" * 5, delay=0.01)

    async def use(client: openai.AsyncOpenAI) -> None:
        response = await client.responses.create(model="tiny", input="hi", background=True)
        assert response.status == "queued"
        response = await client.responses.cancel(response.id)
        assert response.status == "cancelled" and engine.num_live == 0
        stream = await client.responses.create(model="tiny", input="hi", background=True, stream=True)
        async for event in stream:
            if event.sequence_number == 0:
                response_id = event.response.id
            if event.sequence_number == 8:
                await stream.close()
                break
        resumed = await client.responses.retrieve(response_id, stream=True, starting_after=8)
        events = [event async for event in resumed]
        assert events[0].sequence_number == 9 and events[-1].type == "response.completed"
        assert events[-1].response.output_text == "abcdefghij" * 5
        async with client.responses.stream(response_id=response_id, starting_after=8) as again:
            assert (await again.get_final_response()).output_text == "abcdefghij" * 5

    using(engine, use)


def test_a_failed_stream_does_not_raise_in_the_client():
    engine = scripted_engine("abcdef", fail_after=3)

    async def use(client: openai.AsyncOpenAI) -> None:
        events = [event async for event in await client.responses.create(model="tiny", input="hi", stream=True)]
        assert events[-1].type == "response.failed" and events[-1].response.error is not None
        assert events[-1].response.output_text == "abc"

    using(engine, use)
