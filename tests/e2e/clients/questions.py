"""What the clients ask, and what the embedded model answers."""

from typing import Any

KEY = "client-key"
MODEL = "SmolLM2-135M-Instruct"
QUESTION = "What is the capital of France?"
MESSAGES: list[dict[str, str]] = [{"role": "user", "content": QUESTION}]
ANSWER = "The capital of France is Paris."

WEATHER_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "maxLength": 20},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
WEATHER_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "get_weather", "description": "The weather of a city", "parameters": WEATHER_PARAMETERS},
}
WEATHER_QUESTION: list[dict[str, str]] = [{"role": "user", "content": "What is the weather in Paris in celsius?"}]


def check_weather(arguments: dict[str, Any]) -> None:
    assert set(arguments) == {"city", "unit"}
    assert arguments["unit"] in ("celsius", "fahrenheit")
    assert 1 <= len(arguments["city"]) <= 20
