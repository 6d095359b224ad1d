"""The official Python client of Anthropic."""

from collections.abc import Iterator

import anthropic
import pytest
from questions import ANSWER, KEY, MESSAGES, MODEL, WEATHER_PARAMETERS, WEATHER_QUESTION, check_weather

TOOL = {"name": "get_weather", "description": "The weather of a city", "input_schema": WEATHER_PARAMETERS}
GREEDY = {"temperature": 0}  # the client has no argument for it any more


@pytest.fixture
def client(server: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server, api_key=KEY, max_retries=0, timeout=60) as client:
        yield client


def test_messages(client: anthropic.Anthropic) -> None:
    message = client.messages.create(model=MODEL, messages=MESSAGES, max_tokens=50, extra_body=GREEDY)
    assert [block.text for block in message.content] == [ANSWER]
    assert message.stop_reason == "end_turn"
    assert message.usage.output_tokens == 8


def test_stream(client: anthropic.Anthropic) -> None:
    with client.messages.stream(model=MODEL, messages=MESSAGES, max_tokens=50, extra_body=GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == ANSWER
    assert final.stop_reason == "end_turn"


def test_tools(client: anthropic.Anthropic) -> None:
    message = client.messages.create(
        model=MODEL,
        messages=WEATHER_QUESTION,
        max_tokens=200,
        extra_body=GREEDY,
        tools=[TOOL],
        tool_choice={"type": "tool", "name": "get_weather"},
    )
    assert message.stop_reason == "tool_use"
    (call,) = [block for block in message.content if block.type == "tool_use"]
    check_weather(call.input)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "18 degrees"}
    after = client.messages.create(
        model=MODEL,
        messages=[
            *WEATHER_QUESTION,
            {"role": "assistant", "content": [block.model_dump() for block in message.content]},
            {"role": "user", "content": [result]},
        ],
        tools=[TOOL],
        max_tokens=5,
        extra_body=GREEDY,
    )
    assert after.usage.output_tokens <= 5


def test_count_tokens(client: anthropic.Anthropic) -> None:
    message = client.messages.create(model=MODEL, messages=MESSAGES, max_tokens=1, extra_body=GREEDY)
    count = client.messages.count_tokens(model=MODEL, messages=MESSAGES)
    usage = message.usage
    assert count.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_errors_are_the_clients_own(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="nobody", messages=MESSAGES, max_tokens=5)
    with pytest.raises(anthropic.AuthenticationError):
        client.with_options(api_key="wrong").messages.create(model=MODEL, messages=MESSAGES, max_tokens=5)
