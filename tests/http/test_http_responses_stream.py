"""Streamed responses over a fake engine: the order of events, and the same response however its tokens are cut."""

import itertools
from typing import Any

import pytest

from pelton.errors import RequestError
from pelton.http.openai.parts import Reasoning, Text
from pelton.http.openai.responses_api.tokens import ReasoningCounter
from pelton.types import Delta, SamplingParams

from bracketed import URL, bracketed, error_of, parse_event_stream, parse_response, scripted
from fakes import tiny_tokenizer

BODY: dict[str, Any] = {"input": "hi", "stream": True}


def without_ids(item: object) -> object:
    """The same for every response to the same request."""
    if isinstance(item, dict):
        hidden = ("id", "item_id", "created_at", "completed_at")
        return {key: without_ids(value) for key, value in item.items() if key not in hidden}
    return [without_ids(each) for each in item] if isinstance(item, list) else item


def types(events: list[dict[str, Any]]) -> list[str]:
    """The types of the events in order, of equal ones beside each other one, without "response."."""
    return [kind for kind, _ in itertools.groupby(event["type"].removeprefix("response.") for event in events)]


MESSAGE_EVENTS = [
    *("output_item.added", "content_part.added", "output_text.delta"),
    *("output_text.done", "content_part.done", "output_item.done"),
]
REASONING_EVENTS = [kind.replace("output_text", "reasoning_text") for kind in MESSAGE_EVENTS]
CALL_EVENTS = [
    *("output_item.added", "function_call_arguments.delta"),
    *("function_call_arguments.done", "output_item.done"),
]


def test_text_comes_in_the_order_that_clients_expect():
    _, client = scripted("hello world é")
    events = parse_event_stream(client.post(URL, BODY))
    assert types(events) == ["created", "in_progress", *MESSAGE_EVENTS, "completed"]
    created, in_progress, added, part = events[:4]
    for event in (created, in_progress):
        assert event["response"]["status"] == "in_progress" and event["response"]["output"] == []
        assert event["response"]["usage"] is None
    item_id = added["item"]["id"]
    assert added["item"]["content"] == [] and added["item"]["status"] == "in_progress"
    assert part["part"] == {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [delta["delta"] for delta in deltas] == ["hello", " w", "o", "r", "l", "d", " ", "é"]
    assert all((delta["item_id"], delta["output_index"], delta["content_index"]) == (item_id, 0, 0) for delta in deltas)
    text_done, part_done, item_done, completed = events[-4:]
    assert text_done["text"] == part_done["part"]["text"] == "hello world é"
    assert item_done["item"]["content"] == [part_done["part"]]
    assert completed["response"]["output"] == [item_done["item"]]
    assert completed["response"]["id"] == created["response"]["id"]
    whole = parse_response(client.post(URL, {"input": "hi"}))
    assert without_ids(completed["response"]) == without_ids(whole)


def test_an_empty_answer_has_all_events_but_deltas():
    _, client = scripted("")
    events = parse_event_stream(client.post(URL, BODY))
    message = [kind for kind in MESSAGE_EVENTS if kind != "output_text.delta"]
    assert types(events) == ["created", "in_progress", *message, "completed"]


def turn_script(engine: Any) -> list[int]:
    """Tokens of a turn with reasoning, text and calls; those of the emoji are parts of a character."""
    return engine.ids("[hello 🧎 hello]hello é<f:hello><g:>")


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_however_tokens_are_cut_the_turn_is_the_same(monkeypatch: pytest.MonkeyPatch, size: int):
    bracketed(monkeypatch)
    engine, client = scripted("", num_tokens_per_delta=size)
    engine.script = turn_script(engine)
    events = parse_event_stream(client.post(URL, BODY))
    expected = ["created", "in_progress", *REASONING_EVENTS, *MESSAGE_EVENTS, *CALL_EVENTS]
    no_arguments = [kind for kind in CALL_EVENTS if kind != "function_call_arguments.delta"]
    assert types(events) == [*expected, *no_arguments, "completed"]
    response = events[-1]["response"]
    assert without_ids(response["output"]) == [
        {
            "type": "reasoning",
            "status": "completed",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "hello 🧎 hello"}],
            "encrypted_content": None,
        },
        {
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "hello é", "annotations": [], "logprobs": []}],
        },
        {"type": "function_call", "status": "completed", "call_id": "call_1", "name": "f", "arguments": "hello"},
        {"type": "function_call", "status": "completed", "call_id": "call_2", "name": "g", "arguments": ""},
    ]
    assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": len(engine.ids("hello 🧎 hello"))}
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    added = [event["item"]["id"] for event in events if event["type"] == "response.output_item.added"]
    assert done == response["output"] and added == [item["id"] for item in done]
    indices = [event["output_index"] for event in events if "output_index" in event]
    assert indices == sorted(indices) and set(indices) == {0, 1, 2, 3}
    whole = parse_response(client.post(URL, {"input": "hi"}))
    assert without_ids(whole) == without_ids(response)


@pytest.mark.parametrize("size", [1, 2, 100])
@pytest.mark.parametrize(
    ("turn", "reasoning"),
    [
        ("[]hello", ""),
        ("hello[hello]", "hello"),
        ("[hell", "hell"),
        ("[he]x[DEFHI]", "heDEFHI"),
        ("[x]x[x]x", "xx"),
    ],
)
def test_reasoning_tokens_are_those_of_the_reasoning_text(
    monkeypatch: pytest.MonkeyPatch, size: int, turn: str, reasoning: str
):
    bracketed(monkeypatch)
    engine, client = scripted(turn, num_tokens_per_delta=size)
    response = parse_response(client.post(URL, {"input": "hi"}))
    num_tokens = response["usage"]["output_tokens_details"]["reasoning_tokens"]
    assert num_tokens == len(engine.ids(reasoning)), [engine.ids(turn), engine.ids(reasoning)]


@pytest.mark.parametrize("size", [1, 2, 100])
@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_a_message_are_those_of_its_text(monkeypatch: pytest.MonkeyPatch, stream: bool, size: int):
    bracketed(monkeypatch)
    engine, client = scripted("", num_tokens_per_delta=size)
    engine.script = turn_script(engine)
    body = {"input": "hi", "include": ["message.output_text.logprobs"], "top_logprobs": 2, "stream": stream}
    answer = client.post(URL, body)
    if stream:
        events = parse_event_stream(answer)
        response = events[-1]["response"]
        deltas = [event for event in events if event["type"] == "response.output_text.delta"]
        streamed = [entry for delta in deltas for entry in delta["logprobs"]]
        assert streamed == response["output"][1]["content"][0]["logprobs"]
    else:
        response = parse_response(answer)
    entries = response["output"][1]["content"][0]["logprobs"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == "hello é"
    assert [len(entry["top_logprobs"]) for entry in entries] == [2] * len(engine.ids("hello é"))
    assert response["top_logprobs"] == 2


def test_without_include_the_most_likely_token_is_not_told():
    _, client = scripted("x")
    (message,) = parse_response(client.post(URL, {"input": "hi", "top_logprobs": 0}))["output"]
    assert message["content"][0]["logprobs"] == []
    body = {"input": "hi", "include": ["message.output_text.logprobs"]}
    (message,) = parse_response(client.post(URL, body))["output"]
    assert message["content"][0]["logprobs"] == [{"token": "x", "logprob": -0.5, "bytes": [120], "top_logprobs": []}]


@pytest.mark.parametrize(
    ("turn", "last"),
    [("[abcdef", "reasoning"), ("abcdefg", "message"), ("<f:abcdef", "function_call")],
)
def test_a_turn_cut_by_its_length_is_incomplete(monkeypatch: pytest.MonkeyPatch, turn: str, last: str):
    bracketed(monkeypatch)
    _, client = scripted(turn)
    events = parse_event_stream(client.post(URL, {**BODY, "max_output_tokens": 5}))
    assert types(events)[-2:] == ["output_item.done", "incomplete"]
    response = events[-1]["response"]
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [(item["type"], item["status"]) for item in response["output"]] == [(last, "incomplete")]
    assert response["usage"]["output_tokens"] == 5


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (RuntimeError("planted at /secret/path"), "server_error", "Internal server error"),
        (RequestError("planted", status=503), "server_error", "planted"),
        (RequestError("planted", param="x"), "invalid_prompt", "planted"),
    ],
)
def test_an_error_in_the_middle_ends_the_stream_as_a_failed_response(error: Exception, code: str, message: str):
    _, client = scripted("abcdef", fail_after=2, error=error)
    events = parse_event_stream(client.post(URL, BODY))
    assert types(events)[-2:] == ["output_item.done", "failed"]
    response = events[-1]["response"]
    assert response["status"] == "failed"
    assert (response["error"]["code"], response["error"]["message"]) == (code, message)
    assert response["output"][0]["content"][0]["text"] == "ab"
    assert parse_response(client.get(f"{URL}/{response['id']}")) == response


def test_an_answer_that_the_server_ends_early_has_failed():
    engine, client = scripted("abc")
    engine.aborting = True
    events = parse_event_stream(client.post(URL, BODY))
    assert types(events) == ["created", "in_progress", "failed"]


def test_an_error_in_the_middle_of_a_whole_answer_is_a_plain_one():
    _, client = scripted("abcdef", fail_after=2)
    answer = client.post(URL, {"input": "hi"})
    assert answer.status_code == 500 and error_of(answer)["message"] == "Internal server error"


def test_a_token_that_is_reasoning_in_part_counts_and_a_hidden_one_does_not():
    tokenizer = tiny_tokenizer()
    counter = ReasoningCounter(tokenizer, SamplingParams())
    (mixed,) = tokenizer.encode("DEF", add_special_tokens=False)
    hidden, (letter,) = tokenizer.eos_token_ids[0], tokenizer.encode("x", add_special_tokens=False)
    counter.push(Delta(text="DEF", token_ids=(mixed,)), [Text("D"), Reasoning("EF")])
    counter.push(Delta(text="xxxx", token_ids=(hidden, letter, letter, letter, letter)), [Reasoning("xxx"), Text("x")])
    assert counter.num_tokens == 4
    counter.push(Delta(text="x", token_ids=(letter,), finish_reason="length"), [Reasoning("x")])
    assert counter.num_tokens == 5
