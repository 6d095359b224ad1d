"""The official client of Anthropic against a running server."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import anthropic
import pytest
from anthropic import AsyncAnthropic

from fakes import FakeEngine, Running, serving

Scenario = Callable[[AsyncAnthropic, FakeEngine], Awaitable[None]]
ASK: dict[str, Any] = {"model": "tiny", "max_tokens": 50, "messages": [{"role": "user", "content": "hello"}]}


def ask(engine: FakeEngine, scenario: Scenario) -> None:
    engine.config = replace(engine.config, api_key=("key",))

    async def run(running: Running) -> None:
        base_url = f"http://127.0.0.1:{engine.config.port}"
        strict = {"_strict_response_validation": True}
        async with AsyncAnthropic(api_key="key", base_url=base_url, max_retries=0, **strict) as client:
            await scenario(client, engine)

    assert serving(engine, run) == 0


def engine_saying(text: str, **settings: Any) -> FakeEngine:
    engine = FakeEngine(**settings)
    engine.script = engine.ids(text)
    return engine


def test_create_and_count():
    async def scenario(client: AsyncAnthropic, engine: FakeEngine) -> None:
        message = await client.messages.create(**ASK, system="Be brief.", stop_sequences=["!"])
        assert message.content[0].type == "text"
        assert message.content[0].text == "Grüße"
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "!")
        assert message.id.startswith("msg_")
        count = await client.messages.count_tokens(model="tiny", system="Be brief.", messages=ASK["messages"])
        assert count.input_tokens == message.usage.input_tokens == len(engine.calls[0].prompt_ids)

    ask(engine_saying("Grüße!"), scenario)


def test_the_stream_helper_gives_the_same_message():
    async def scenario(client: AsyncAnthropic, engine: FakeEngine) -> None:
        async with client.messages.stream(**ASK) as stream:
            texts = [text async for text in stream.text_stream]
            streamed = await stream.get_final_message()
        whole = await client.messages.create(**ASK)
        assert "".join(texts) == "Grüße!"
        assert len(texts) > 1
        assert streamed.to_dict(exclude_none=True) | {"id": whole.id} == whole.to_dict(exclude_none=True)

    ask(engine_saying("Grüße!", num_cached_tokens=1), scenario)


def test_errors_are_the_exceptions_that_the_client_has_for_them():
    async def scenario(client: AsyncAnthropic, engine: FakeEngine) -> None:
        with pytest.raises(anthropic.NotFoundError, match="does not exist"):
            await client.messages.create(**{**ASK, "model": "other"})
        with pytest.raises(anthropic.BadRequestError, match="temperature"):
            await client.messages.create(**ASK, extra_body={"temperature": 1.5})
        with pytest.raises(anthropic.AuthenticationError, match="API key"):
            await client.with_options(api_key="wrong").messages.create(**ASK)
        engine.fail_after = 1
        with pytest.raises(anthropic.APIStatusError, match="Internal server error"):
            async with client.messages.stream(**ASK) as stream:
                await stream.get_final_message()

    ask(engine_saying("ab"), scenario)
