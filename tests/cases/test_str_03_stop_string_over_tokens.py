"""A stop string that comes in several tokens is never shown, not even its beginning.

Servers that look for stop strings after they have sent a token leak the part before (vllm#3574, vllm#2577,
vllm#3672). With `include_stop_str_in_output` the text ends exactly with the stop string, streamed or not.
"""

from typing import Any

import pytest

from fakes import URL, Client, FakeEngine

STOP = "DEFGHIJ"
BODY: dict[str, Any] = {"prompt": "letters: ABC", "stop": [STOP], "temperature": 0, "max_tokens": 50}


def client_of(before: str, size: int) -> Client:
    engine = FakeEngine(num_tokens_per_delta=size)
    engine.script = [token for part in (before, "DEF", "G", "HI", "J", "K", "L") for token in engine.ids(part)]
    return Client.of(engine)


def streamed(client: Client, body: dict[str, Any]) -> tuple[str, list[str | None], object]:
    choices = [event["choices"][0] for event in client.events(URL, body)]
    reasons = [choice["finish_reason"] for choice in choices]
    return "".join(choice["text"] for choice in choices), reasons, choices[-1]["stop_reason"]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("before", ["", "x", "D", "DEFDEFG"])
@pytest.mark.parametrize("included", [False, True])
def test_str_03_stream_and_whole_agree_and_leak_nothing(before: str, size: int, included: bool):
    body = {**BODY, "include_stop_str_in_output": included}
    text, reasons, stop_reason = streamed(client_of(before, size), body)
    assert text == before + (STOP if included else "")
    assert reasons == [None] * (len(reasons) - 1) + ["stop"]
    assert stop_reason == STOP
    choice = client_of(before, size).post(URL, body).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (text, "stop", STOP)


def test_str_03_the_events_of_a_stopped_stream_hold_no_letter_of_the_stop_string():
    events = client_of("", 1).events(URL, BODY)
    assert [event["choices"][0]["text"] for event in events] == [""]


def test_str_03_usage_counts_the_tokens_of_the_stop_string_streamed_or_not():
    whole = client_of("", 1).post(URL, BODY).json()["usage"]
    *_, last = client_of("", 1).events(URL, {**BODY, "stream_options": {"include_usage": True}})
    assert whole["completion_tokens"] == 4  # DEF, G, HI, J
    assert last["usage"] == whole
