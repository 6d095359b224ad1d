"""How long a request may take: the server's setting, the client's header, and what ends when the time is over."""

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import pytest

from pelton.http.app import create_app

from fakes import URL, Client, FakeEngine, Running, serving, until

CHAT = "/v1/chat/completions"
BODY = {"prompt": "hi", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2000, "ignore_eos": True}
SHORTLY = {"X-Request-Timeout": "0.1"}


def assert_timed_out(response: httpx.Response) -> None:
    assert response.status_code == 408, response.text
    error = response.json()["error"]
    assert (error["code"], error["type"], error["param"]) == (408, "RequestTimeoutError", None)
    assert "0.1 s" in error["message"]


@pytest.mark.parametrize("url", [URL, CHAT])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("num_choices", [1, 3])
def test_before_the_first_token_it_is_a_408_and_everything_ends(url: str, stream: bool, num_choices: int):
    engine = FakeEngine(delay=100)
    client = Client.of(engine)
    assert_timed_out(client.post(url, {**BODY, "n": num_choices, "stream": stream}, headers=SHORTLY))
    assert [call.ended for call in engine.calls] == ["abort"] * num_choices
    assert engine.num_live == 0
    text = client.get("/metrics").text
    assert f'request_success_total{{engine="0",finished_reason="abort",model_name="tiny"}} {num_choices}.0' in text
    assert 'error_responses_total{engine="0",model_name="tiny",status="408"} 1.0' in text


def test_a_whole_answer_that_is_under_way_is_a_408():
    engine = FakeEngine(delay=0.01)
    assert_timed_out(Client.of(engine).post(URL, BODY, headers=SHORTLY))
    assert engine.num_live == 0


@pytest.mark.parametrize("url", [URL, CHAT])
def test_in_a_stream_it_is_an_error_event(url: str):
    engine = FakeEngine(delay=0.01)
    events = Client.of(engine).request("POST", url, json={**BODY, "stream": True}, headers={"X-Request-Timeout": "0.2"})
    blocks = events.content.decode().split("\n\n")
    assert blocks[-2:] == ["data: [DONE]", ""]
    assert '"code":408' in blocks[-3]
    assert len(blocks) > 4
    assert all('"finish_reason":null' in block for block in blocks[:-3])
    assert engine.num_live == 0


@pytest.mark.parametrize(
    ("setting", "header", "shown"), [(0.1, None, "0.1 s"), (0.1, "50", "0.1 s"), (50.0, "0.1", "0.1 s")]
)
def test_the_shorter_time_holds(setting: float, header: str | None, shown: str):
    engine = FakeEngine(delay=100)
    engine.config = replace(engine.config, request_timeout=setting)
    headers = {} if header is None else {"X-Request-Timeout": header}
    assert_timed_out(Client.of(engine).post(URL, BODY, headers=headers))


@pytest.mark.parametrize("value", ["", "x", "0", "-1", "nan", "inf", "1e9", "1 s", "1e400", "²"])
def test_a_bad_header_is_a_400_that_names_it(value: str):
    engine = FakeEngine(script=[])
    headers = {"X-Request-Timeout": value.encode()}
    response = Client.of(engine).post(URL, {"prompt": "hi"}, headers=headers)
    assert response.status_code == 400
    assert "X-Request-Timeout" in response.json()["error"]["message"]
    assert engine.calls == []


def test_a_request_in_time_is_as_ever():
    engine = FakeEngine()
    engine.script = engine.ids("hello world")
    headers = {"X-Request-Timeout": "60"}
    answer = Client.of(engine).post(URL, {"prompt": "hi"}, headers=headers)
    assert answer.json()["choices"][0]["text"] == "hello world"


def test_a_body_that_does_not_come_ends_as_well():
    engine = FakeEngine(script=[])

    async def never() -> dict[str, Any]:
        await asyncio.sleep(1000)
        raise AssertionError

    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json"), (b"x-request-timeout", b"0.05")]
    scope = {"type": "http", "method": "POST", "path": URL, "headers": headers, "query_string": b""}
    asyncio.run(create_app(engine)(scope, never, send))
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert sent[0]["status"] == 408


def test_a_deadline_over_the_wire_leaves_the_connection_usable():
    engine = FakeEngine(delay=0.01)

    async def scenario(running: Running) -> None:
        assert_timed_out(await running.client.post(URL, json=BODY, headers=SHORTLY))
        await until(lambda: engine.num_live == 0)
        answer = await running.client.post(URL, json={**BODY, "max_tokens": 2})
        assert answer.json()["usage"]["completion_tokens"] == 2

    assert serving(engine, scenario) == 0
