"""Frameworks that people put between their program and a server."""

import os

import pytest
from pydantic import BaseModel, Field
from questions import ANSWER, KEY, MESSAGES, MODEL, QUESTION, WEATHER_TOOL, check_weather

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else its import asks the network


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=20)
    inhabitants: int = Field(ge=0, le=50_000_000)


@pytest.fixture
def langchain_model(base_url: str):
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(model=MODEL, base_url=base_url, api_key=KEY, temperature=0, max_retries=0, timeout=60)


def test_langchain(langchain_model) -> None:
    assert langchain_model.invoke(QUESTION).content == ANSWER
    assert "".join(chunk.content for chunk in langchain_model.stream(QUESTION)) == ANSWER


def test_langchain_with_tools(langchain_model) -> None:
    with_tool = langchain_model.bind_tools([WEATHER_TOOL], tool_choice="get_weather")
    (call,) = with_tool.invoke("What is the weather in Paris?").tool_calls
    assert call["name"] == "get_weather"
    check_weather(call["args"])
    required = langchain_model.bind_tools([WEATHER_TOOL], tool_choice="required", parallel_tool_calls=False)
    (call,) = required.invoke("What is the weather in Paris?").tool_calls
    check_weather(call["args"])


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchain_structured(langchain_model, method: str) -> None:
    city = langchain_model.with_structured_output(City, method=method).invoke("Tell me about Paris")
    assert isinstance(city, City)


def test_litellm(base_url: str) -> None:
    import litellm

    options = {"model": f"hosted_vllm/{MODEL}", "api_base": base_url, "api_key": KEY, "temperature": 0}
    answer = litellm.completion(messages=MESSAGES, **options)
    assert answer.choices[0].message.content == ANSWER
    chunks = list(litellm.completion(messages=MESSAGES, stream=True, **options))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ANSWER
    vectors = litellm.embedding(model=f"hosted_vllm/{MODEL}", input=["a"], api_base=base_url, api_key=KEY)
    assert len(vectors.data) == 1


def test_litellm_tools(base_url: str) -> None:
    import json

    import litellm

    answer = litellm.completion(
        model=f"openai/{MODEL}",
        api_base=base_url,
        api_key=KEY,
        temperature=0,
        messages=[{"role": "user", "content": "What is the weather in Paris?"}],
        tools=[WEATHER_TOOL],
        tool_choice="required",
        max_tokens=200,
    )
    check_weather(json.loads(answer.choices[0].message.tool_calls[0].function.arguments))


@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA"])
def test_instructor(base_url: str, mode: str) -> None:
    import instructor
    import openai

    client = instructor.from_openai(
        openai.OpenAI(base_url=base_url, api_key=KEY, max_retries=0), mode=instructor.Mode[mode]
    )
    city = client.chat.completions.create(
        model=MODEL,
        response_model=City,
        messages=[{"role": "user", "content": "Tell me about Paris"}],
        temperature=0,
        max_tokens=100,
        max_retries=0,
    )
    assert isinstance(city, City)


def test_llama_index(base_url: str) -> None:
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.openai_like import OpenAILike

    model = OpenAILike(
        model=MODEL,
        api_base=base_url,
        api_key=KEY,
        is_chat_model=True,
        temperature=0,
        max_tokens=50,
        context_window=2048,
    )
    messages = [ChatMessage(role="user", content=QUESTION)]
    assert model.chat(messages).message.content == ANSWER
    assert [*model.stream_chat(messages)][-1].message.content == ANSWER
    plain = OpenAILike(
        model=MODEL,
        api_base=base_url,
        api_key=KEY,
        is_chat_model=False,
        temperature=0,
        max_tokens=4,
        context_window=2048,
    )
    assert plain.complete("1 2 3 4").text
