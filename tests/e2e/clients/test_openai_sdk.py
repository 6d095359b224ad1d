"""The official Python client of OpenAI: sync, async, stream helpers, parsed answers, responses, embeddings."""

import asyncio
import json
from collections.abc import Iterator
from enum import Enum

import openai
import pytest
from pydantic import BaseModel, Field
from questions import (
    ANSWER,
    KEY,
    MESSAGES,
    MODEL,
    QUESTION,
    WEATHER_PARAMETERS,
    WEATHER_QUESTION,
    WEATHER_TOOL,
    check_weather,
)


class Unit(Enum):
    celsius = "celsius"
    fahrenheit = "fahrenheit"


class Weather(BaseModel):
    city: str = Field(max_length=20)
    unit: Unit


@pytest.fixture
def client(base_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=base_url, api_key=KEY, max_retries=0, timeout=60) as client:
        yield client


def test_sync(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0)
    assert answer.choices[0].message.content == ANSWER
    assert answer.choices[0].finish_reason == "stop"
    text = client.completions.create(model=MODEL, prompt="1 2 3 4", max_tokens=4, temperature=0, logprobs=2)
    assert text.usage.completion_tokens == 4
    assert [model.id for model in client.models.list()] == [MODEL]


def test_async(base_url: str) -> None:
    async def ask() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=base_url, api_key=KEY, max_retries=0, timeout=60) as client:
            answers = await asyncio.gather(
                *(client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0) for _ in range(8))
            )
        return [answer.choices[0].message.content for answer in answers]

    assert asyncio.run(ask()) == [ANSWER] * 8


def test_stream_helper(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=MESSAGES, temperature=0, stream_options={"include_usage": True}
    ) as stream:
        texts = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(texts) == ANSWER
    assert final.choices[0].message.content == ANSWER
    assert final.usage is not None and final.usage.completion_tokens == 8


def test_parse_with_pydantic(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=WEATHER_QUESTION, response_format=Weather, temperature=0, max_tokens=100
    )
    parsed = answer.choices[0].message.parsed
    assert isinstance(parsed, Weather)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_tools(client: openai.OpenAI, choice: object) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=WEATHER_QUESTION, tools=[WEATHER_TOOL], tool_choice=choice, temperature=0, max_tokens=200
    )
    (call, *_) = answer.choices[0].message.tool_calls
    assert call.function.name == "get_weather"
    check_weather(json.loads(call.function.arguments))
    result = {"role": "tool", "tool_call_id": call.id, "content": "18 degrees"}
    made = answer.choices[0].message.model_dump(exclude_none=True)
    after = client.chat.completions.create(
        model=MODEL, messages=[*WEATHER_QUESTION, made, result], tools=[WEATHER_TOOL], max_tokens=5, temperature=0
    )
    assert after.choices[0].finish_reason in ("length", "stop", "tool_calls")


def test_streamed_tools(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL,
        messages=WEATHER_QUESTION,
        tools=[WEATHER_TOOL],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0,
        max_tokens=200,
    ) as stream:
        for _ in stream:
            pass
        (call,) = stream.get_final_completion().choices[0].message.tool_calls
    check_weather(json.loads(call.function.arguments))


def test_responses(client: openai.OpenAI) -> None:
    first = client.responses.create(model=MODEL, input=QUESTION, temperature=0)
    assert first.output_text == ANSWER
    assert first.status == "completed"
    again = client.responses.create(
        model=MODEL, input="Are you sure?", previous_response_id=first.id, temperature=0, max_output_tokens=16
    )
    assert again.usage.input_tokens > first.usage.input_tokens
    assert client.responses.retrieve(first.id).output_text == ANSWER
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_streamed_responses(client: openai.OpenAI) -> None:
    with client.responses.stream(model=MODEL, input=QUESTION, temperature=0) as stream:
        texts = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(texts) == final.output_text == ANSWER


def test_responses_parse_and_tools(client: openai.OpenAI) -> None:
    parsed = client.responses.parse(
        model=MODEL, input="The weather in Paris", text_format=Weather, temperature=0, max_output_tokens=100
    )
    assert isinstance(parsed.output_parsed, Weather)
    tool = {"type": "function", "name": "get_weather", "parameters": WEATHER_PARAMETERS, "strict": True}
    called = client.responses.create(
        model=MODEL, input="Weather in Paris?", tools=[tool], tool_choice="required", temperature=0
    )
    calls = [item for item in called.output if item.type == "function_call"]
    check_weather(json.loads(calls[0].arguments))


def test_embeddings(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model=MODEL, input=["a cat", "a kitten", "tax law"])
    cat, kitten, law = (item.embedding for item in answer.data)
    assert abs(sum(value * value for value in cat) - 1) < 1e-3
    assert dot(cat, kitten) > dot(cat, law)
    floats = client.embeddings.create(model=MODEL, input="a cat", encoding_format="float")
    assert floats.data[0].embedding == pytest.approx(cat, abs=1e-6)


def dot(left: list[float], right: list[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def test_errors_are_the_clients_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="nobody", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=3)
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
