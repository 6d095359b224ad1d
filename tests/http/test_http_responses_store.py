"""Responses that are kept: fetching, deleting, going on from one, listing its input, and what is kept for how long."""

import dataclasses
from typing import Any

import pytest
from openai.types.responses import ResponseItemList
from pydantic import TypeAdapter

from pelton.errors import RequestError
from pelton.http import app
from pelton.http.openai.responses_api.store import ResponseStore, StoredResponse

from bracketed import URL, bracketed, error_of, parse_event_stream, parse_response, prompt_text, scripted
from fakes import Client

ASSISTANT = "<|im_start|>assistant\n"


def said(role: str, text: str) -> str:
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def create(client: Client, **fields: Any) -> dict[str, Any]:
    return parse_response(client.post(URL, {"input": "hi", **fields}))


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_can_be_fetched_until_it_is_deleted(stream: bool):
    _, client = scripted("hello")
    answer = client.post(URL, {"input": "hi", "stream": stream})
    made = parse_event_stream(answer)[-1]["response"] if stream else parse_response(answer)
    url = f"{URL}/{made['id']}"
    assert parse_response(client.get(url)) == made
    assert client.request("DELETE", url).json() == {"id": made["id"], "object": "response", "deleted": True}
    for answer in (
        client.get(url),
        client.request("DELETE", url),
        client.post(f"{url}/cancel", {}),
        client.get(f"{url}/input_items"),
    ):
        assert answer.status_code == 404
        assert error_of(answer)["message"] == f"Response with id '{made['id']}' not found."


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_that_is_not_stored_cannot_be_fetched(stream: bool):
    _, client = scripted("hello")
    answer = client.post(URL, {"input": "hi", "stream": stream, "store": False})
    made = parse_event_stream(answer)[-1]["response"] if stream else parse_response(answer)
    assert made["store"] is False
    assert client.get(f"{URL}/{made['id']}").status_code == 404
    assert error_of(client.post(URL, {"input": "hi", "previous_response_id": made["id"]}))["param"]


def test_a_response_exists_for_its_own_key_only():
    engine, _ = scripted("hello")
    engine.config = dataclasses.replace(engine.config, api_key=("one", "two"))
    client = Client.of(engine)
    one, two = ({"headers": {"authorization": f"Bearer {key}"}} for key in ("one", "two"))
    made = parse_response(client.post(URL, {"input": "hi"}, **one))
    url = f"{URL}/{made['id']}"
    assert client.get(url, **one).status_code == 200
    assert client.get(url).status_code == 401
    for method, path in (("GET", url), ("DELETE", url), ("POST", f"{url}/cancel"), ("GET", f"{url}/input_items")):
        assert client.request(method, path, **two).status_code == 404
    body = {"input": "hi", "previous_response_id": made["id"]}
    assert client.post(URL, body, **two).status_code == 400
    assert client.post(URL, body, **one).status_code == 200


def test_a_conversation_goes_on_without_the_earlier_instructions():
    engine, client = scripted("one")
    first = create(client, input="a", instructions="be brief")
    engine.script = engine.ids("two")
    second = create(client, input="b", previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"] and second["instructions"] is None
    create(client, input="c", previous_response_id=second["id"], instructions="be kind")
    assert prompt_text(engine) == (
        said("system", "be kind")
        + said("user", "a")
        + said("assistant", "one")
        + said("user", "b")
        + said("assistant", "two")
        + said("user", "c")
        + ASSISTANT
    )
    branch = create(client, input="d", previous_response_id=first["id"])
    assert prompt_text(engine) == said("user", "a") + said("assistant", "one") + said("user", "d") + ASSISTANT
    client.request("DELETE", f"{URL}/{first['id']}")
    create(client, input="e", previous_response_id=branch["id"])
    assert said("assistant", "one") in prompt_text(engine)


def test_calls_of_an_earlier_response_get_their_outputs(monkeypatch: pytest.MonkeyPatch):
    chats = bracketed(monkeypatch)
    engine, client = scripted('[hm]<f:{"a": 1}>')
    first = create(client, input="go")
    engine.script = engine.ids("done")
    output = {"type": "function_call_output", "call_id": "call_1", "output": "1"}
    create(client, input=[output], previous_response_id=first["id"])
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    assert chats[1].messages == [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "1"},
    ]
    answer = client.post(URL, {"input": [{**output, "call_id": "x"}], "previous_response_id": first["id"]})
    assert error_of(answer)["param"] == "input[0].call_id"


def test_items_can_be_referred_to_as_long_as_their_response_is_kept(monkeypatch: pytest.MonkeyPatch):
    chats = bracketed(monkeypatch)
    _, client = scripted("[hm]<f:>x")
    first = create(client, input="go")
    items = [
        {"role": "user", "content": "go"},
        *({"type": "item_reference", "id": item["id"]} for item in first["output"][:2]),
        {"type": "function_call_output", "call_id": "call_1", "output": "1"},
    ]
    create(client, input=items)
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}
    assert chats[1].messages == [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "1"},
    ]
    client.request("DELETE", f"{URL}/{first['id']}")
    answer = client.post(URL, {"input": items})
    assert answer.status_code == 404 and error_of(answer)["param"] == "input[1].id"
    assert f"Item with id '{first['output'][0]['id']}' not found" in error_of(answer)["message"]


def test_a_call_cut_short_is_left_out_of_the_conversation(monkeypatch: pytest.MonkeyPatch):
    chats = bracketed(monkeypatch)
    _, client = scripted("x<f:abc")
    first = create(client, input="go", max_output_tokens=6)
    assert [item["status"] for item in first["output"]] == ["completed", "incomplete"]
    create(client, input="again", previous_response_id=first["id"])
    assert [message["content"] for message in chats[1].messages] == ["go", "x", "again"]


def test_an_unknown_previous_response_is_named():
    _, client = scripted("x")
    answer = client.post(URL, {"input": "hi", "previous_response_id": "resp_gone"})
    assert answer.status_code == 400
    assert error_of(answer)["message"] == "Previous response with id 'resp_gone' not found."
    assert error_of(answer)["code"] == "previous_response_not_found"
    assert error_of(answer)["type"] == "BadRequestError"


def listed(client: Client, response_id: str, query: str = "") -> dict[str, Any]:
    answer = client.get(f"{URL}/{response_id}/input_items{query}")
    assert answer.status_code == 200, answer.text
    TypeAdapter(ResponseItemList).validate_json(answer.content, strict=True)
    return answer.json()


def texts(page: dict[str, Any]) -> list[str]:
    return [item["content"][0]["text"] for item in page["data"]]


def test_input_items_are_listed_page_by_page():
    _, client = scripted("x")
    items = [{"role": "user", "content": f"{number}", "id": f"msg_{number}"} for number in range(25)]
    response_id = create(client, input=items)["id"]
    page = listed(client, response_id)
    assert texts(page) == [str(number) for number in range(24, 4, -1)]
    assert (page["first_id"], page["last_id"], page["has_more"]) == ("msg_24", "msg_5", True)
    assert page["data"][0] == {
        "id": "msg_24",
        "type": "message",
        "role": "user",
        "status": "completed",
        "content": [{"type": "input_text", "text": "24"}],
    }
    rest = listed(client, response_id, "?after=msg_5")
    assert texts(rest) == ["4", "3", "2", "1", "0"] and rest["has_more"] is False
    assert texts(listed(client, response_id, "?order=asc&limit=2&after=msg_1")) == ["2", "3"]
    assert listed(client, response_id, "?limit=100")["has_more"] is False


def test_input_items_are_those_of_the_whole_conversation(monkeypatch: pytest.MonkeyPatch):
    bracketed(monkeypatch)
    _, client = scripted("[hm]<f:>x")
    first = create(client, input="a")
    output = {"type": "function_call_output", "call_id": "call_1", "output": "1"}
    second = create(client, input=[output], previous_response_id=first["id"])
    page = listed(client, second["id"], "?order=asc")
    kinds = ["message", "reasoning", "function_call", "message", "function_call_output"]
    assert [item["type"] for item in page["data"]] == kinds
    assert [item["id"] for item in page["data"][1:4]] == [item["id"] for item in first["output"]]


def test_logprobs_are_not_kept_with_the_conversation():
    _, client = scripted("x")
    first = create(client, top_logprobs=3)
    assert first["output"][0]["content"][0]["logprobs"]
    second = create(client, previous_response_id=first["id"])
    answer = listed(client, second["id"])["data"][1]
    assert answer["id"] == first["output"][0]["id"] and answer["content"][0]["logprobs"] == []


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("/input_items?limit=0", "limit"),
        ("/input_items?limit=101", "limit"),
        ("/input_items?limit=x", "limit"),
        ("/input_items?order=up", "order"),
        ("/input_items?after=msg_x", "after"),
        ("?stream=perhaps", "stream"),
        ("?stream=true", "stream"),
        ("?starting_after=1", "starting_after"),
        ("?stream=true&starting_after=-1", "starting_after"),
        ("?stream=true&starting_after=99999999999999999999999", "starting_after"),
    ],
)
def test_errors_of_queries_name_the_parameter(path: str, param: str):
    _, client = scripted("x")
    answer = client.get(f"{URL}/{create(client)['id']}{path}")
    assert answer.status_code == 400
    assert error_of(answer)["param"] == param


def test_only_a_response_in_the_background_can_be_cancelled():
    _, client = scripted("x")
    answer = client.post(f"{URL}/{create(client)['id']}/cancel", {})
    assert answer.status_code == 400 and "background" in error_of(answer)["message"]


def test_the_app_keeps_the_responses_used_last(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(app, "ResponseStore", lambda: ResponseStore(max_responses=2))
    _, client = scripted("x")
    first, second = create(client)["id"], create(client)["id"]
    assert client.get(f"{URL}/{first}").status_code == 200
    third = create(client)["id"]
    assert [client.get(f"{URL}/{each}").status_code for each in (first, second, third)] == [200, 404, 200]


def stored(num_bytes: int, **options: Any) -> StoredResponse:
    return StoredResponse(body=b"x" * num_bytes, items=b"[]", num_input_items=0, background=False, **options)


def kept(store: ResponseStore, tenant: str = "") -> list[str]:
    return [name for name in "abcdef" if store.has(tenant, name)]


def test_bytes_are_bounded_for_each_tenant():
    store = ResponseStore(max_responses=10, max_bytes=100)
    for name in "abcd":
        store.keep("", name, stored(30))
    store.keep("other", "e", stored(90))
    assert kept(store) == ["b", "c", "d"] and kept(store, "other") == ["e"]
    store.get("", "b")
    store.keep("", "e", stored(30))
    assert kept(store) == ["b", "d", "e"]
    store.keep("", "d", stored(60))  # grown: b is the one used longest ago
    assert kept(store) == ["d", "e"]
    store.remove("", "d")
    store.keep("", "f", stored(60))
    assert kept(store) == ["e", "f"]
    store.keep("", "a", stored(101))
    assert kept(store) == []
    with pytest.raises(RequestError, match="'a' not found"):
        store.get("", "a")
    store.keep("", "b", stored(90))
    assert kept(store) == ["b"]


class Running:
    response: Any = None

    def cancel(self) -> None:
        raise AssertionError


def test_what_still_runs_is_kept():
    store = ResponseStore(max_responses=2)
    for name in "abc":
        store.keep("", name, stored(1, running=Running()))
    store.keep("", "d", stored(1))
    assert kept(store) == ["a", "b", "c"]
    store.keep("", "a", stored(1))
    assert kept(store) == ["b", "c"]
