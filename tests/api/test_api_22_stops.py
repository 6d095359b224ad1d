"""The stop string is not in the text unless asked for, stop_reason tells what ended it, nothing leaks."""

import pytest

from fakes import EOS, Client, FakeEngine

URL = "/v1/completions"
END = FakeEngine().ids(EOS)[0]


def engine_of(text: str) -> FakeEngine:
    return FakeEngine(script=FakeEngine().ids(text))


@pytest.mark.parametrize(
    ("fields", "text", "reason"),
    [
        ({"stop": "world"}, "hello ", "world"),
        ({"stop": ["world", "lo w"]}, "hel", "lo w"),
        ({"stop": "world", "include_stop_str_in_output": True}, "hello world", "world"),
        ({"stop_token_ids": FakeEngine().ids("d")}, "hello worl", FakeEngine().ids("d")[0]),
        ({}, "hello world end", None),
    ],
)
def test_api_22_text_and_reason(fields: dict[str, object], text: str, reason: object):
    client = Client.of(engine_of("hello world end"))
    choice = client.post(URL, {"prompt": "x", "max_tokens": 50, **fields}).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (text, "stop", reason)
    choices = [event["choices"][0] for event in client.events(URL, {"prompt": "x", "max_tokens": 50, **fields})]
    assert "".join(choice["text"] for choice in choices) == text
    assert choices[-1]["stop_reason"] == reason


def test_api_22_a_beginning_that_does_not_go_on_is_sent():
    client = Client.of(engine_of("wor wor"))
    choices = [event["choices"][0] for event in client.events(URL, {"prompt": "x", "stop": "world", "max_tokens": 50})]
    assert "".join(choice["text"] for choice in choices) == "wor wor"
