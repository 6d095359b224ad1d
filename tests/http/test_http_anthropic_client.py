"""The official client of Anthropic against a running server."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import anthropic
import pytest
from anthropic import AsyncAnthropic

from fakes import CHAT_TEMPLATE, FakeEngine, Running, serving

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


TOOLS: list[Any] = [{"name": "get_weather", "description": "d", "input_schema": {"type": "object"}}]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>'


@pytest.mark.parametrize("streamed", [False, True])
def test_a_tool_is_called_and_its_result_sent_back(streamed: bool):
    async def scenario(client: AsyncAnthropic, engine: FakeEngine) -> None:
        asked = {**ASK, "max_tokens": 500, "tools": TOOLS}
        if streamed:
            async with client.messages.stream(**asked) as stream:
                message = await stream.get_final_message()
        else:
            message = await client.messages.create(**asked)
        assert message.stop_reason == "tool_use"
        thinking, text, call = message.content
        assert thinking.type == "thinking" and thinking.thinking == "Hm." and thinking.signature
        assert text.type == "text" and text.text.strip() == "Let me look."
        assert call.type == "tool_use" and (call.name, call.input) == ("get_weather", {"city": "Köln"})
        engine.script = engine.ids("It rains.")
        result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
        messages = [*ASK["messages"], message.to_param(), {"role": "user", "content": [result]}]
        answer = await client.messages.create(**{**asked, "messages": messages})
        assert answer.content[0].type == "text" and answer.content[0].text == "It rains."
        assert engine.tokenizer.decode(engine.calls[-1].prompt_ids, skip_special_tokens=False).endswith(
            f"{text.text}<|im_end|>\n<|im_start|>tool\nrain<|im_end|>\n<|im_start|>assistant\n"
        )

    engine = engine_saying(f"<think>\nHm.\n</think>\n\nLet me look.\n{CALL}")
    engine.config = replace(engine.config, reasoning_parser="qwen3", tool_call_parser="hermes")
    ask(engine, scenario)


def test_tools_that_must_not_be_called_are_not_shown():
    async def scenario(client: AsyncAnthropic, engine: FakeEngine) -> None:
        none: Any = {"type": "none"}
        message = await client.messages.create(**ASK, tools=TOOLS, tool_choice=none)
        assert message.usage.input_tokens == len(engine.calls[0].prompt_ids)
        plain = await client.messages.count_tokens(model="tiny", messages=ASK["messages"])
        for choice, is_shown in ((none, False), ({"type": "auto"}, True)):
            count = await client.messages.count_tokens(
                model="tiny", messages=ASK["messages"], tools=TOOLS, tool_choice=choice
            )
            assert (count.input_tokens > plain.input_tokens) == is_shown
        assert message.usage.input_tokens == plain.input_tokens

    engine = engine_saying("No.")
    engine.tokenizer.replace_chat_template("{% if tools %}{{ tools }}{% endif %}" + CHAT_TEMPLATE)
    ask(engine, scenario)


@pytest.mark.parametrize(("thinking", "is_on"), [({"type": "adaptive"}, True), ({"type": "disabled"}, False)])
def test_thinking_is_switched_in_the_template(thinking: Any, is_on: bool):
    async def scenario(client: AsyncAnthropic, engine: FakeEngine) -> None:
        message = await client.messages.create(**ASK, thinking=thinking)
        assert [block.type for block in message.content] == (["thinking", "text"] if is_on else ["text"])
        assert message.content[-1].type == "text" and message.content[-1].text == "Yes."

    engine = engine_saying("Hm.</think>Yes." if is_on else "Yes.")
    engine.tokenizer.replace_chat_template(
        CHAT_TEMPLATE + "{% if enable_thinking %}<think>\n{% else %}<think>\n\n</think>\n\n{% endif %}"
    )
    ask(engine, scenario)
