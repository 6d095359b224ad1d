"""How events reach the client: the short way into the connection and the long one, slow readers, faults."""

import asyncio
import json
import re
import socket
import time

import httpx
import pytest

from pelton.http.protocol import GuardedProtocol
from pelton.http.sse import EventTemplate, Outbox

from fakes import URL, Client, FakeEngine, Running, parse_events, raw_post, serving, until, use_small_send_buffers

TEXT = "hello é wide 🫠 world " * 3
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def engine_saying(text: str, **settings: object) -> FakeEngine:
    engine = FakeEngine(**settings)  # type: ignore[arg-type]
    engine.script = engine.ids(text)
    return engine


def comparable(response: httpx.Response) -> bytes:
    return re.sub(rb'"created":\d+', b'"created":0', response.content)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (URL, {"prompt": "hi", "stream_options": {"include_usage": True}}),
        (URL, {"prompt": ["hi", "hello"], "echo": True, "stop": ["wide"]}),
        (URL, {"prompt": "hi", "logprobs": 2, "return_token_ids": True}),
        ("/v1/chat/completions", CHAT),
        ("/v1/chat/completions", {**CHAT, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}),
    ],
)
def test_our_server_and_any_other_send_the_same_bytes(path: str, body: dict[str, object]):
    body = {**body, "stream": True, "max_tokens": 40, "request_id": "same"}
    other = comparable(Client.of(engine_saying(TEXT, delay=0.001)).post(path, body))

    async def scenario(running: Running) -> None:
        assert comparable(await running.client.post(path, json=body)) == other

    assert serving(engine_saying(TEXT, delay=0.001), scenario) == 0


def test_a_reader_that_pauses_misses_nothing_and_gets_it_in_order(monkeypatch: pytest.MonkeyPatch):
    num_pauses = 0
    pause_writing = GuardedProtocol.pause_writing

    def counting(self: GuardedProtocol) -> None:
        nonlocal num_pauses
        num_pauses += 1
        pause_writing(self)

    use_small_send_buffers(monkeypatch)
    monkeypatch.setattr(GuardedProtocol, "pause_writing", counting)
    script = [32 + position % 90 for position in range(400)]
    body = {"prompt": "hi", "max_tokens": 400, "stream": True, "n": 4, "request_id": "x" * 256}

    async def scenario(running: Running) -> None:
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(("127.0.0.1", running.engine.config.port))
            connection.sendall(raw_post(body))
            await until(lambda: num_pauses > 0)
            num_live_while_paused = running.engine.num_live
            await asyncio.sleep(0.05)
            content = await asyncio.to_thread(read_all, connection)
        assert num_live_while_paused == 4
        events = [json.loads(line[6:]) for line in content.splitlines() if line.startswith(b"data: {")]
        for index in range(4):
            texts = [e["choices"][0]["text"] for e in events if e["choices"][0]["index"] == index]
            assert "".join(texts) == running.engine.tokenizer.decode(script)

    assert serving(FakeEngine(script=script, delay=0.001), scenario) == 0


def read_all(connection: socket.socket) -> bytes:
    """The rest of a chunked answer, read slowly at first."""
    connection.settimeout(10)
    content = bytearray()
    while not content.endswith(b"0\r\n\r\n"):
        content += connection.recv(4096)
        time.sleep(0.001 if len(content) < 100_000 else 0)
    return bytes(content)


def test_events_wait_their_turn_while_the_task_still_sends_earlier_ones():
    written: list[bytes] = []

    def write(data: bytes) -> bool:
        written.append(data)
        return True

    async def main() -> None:
        outbox = Outbox(write)
        outbox.put(b"1")
        outbox.put(b"2")
        assert await outbox.take(begun=False) == b"12"
        outbox.put(b"3")  # 1 and 2 are on their way through the task: 3 must not overtake them
        assert await outbox.take(begun=True) == b"3"
        waiting = asyncio.create_task(outbox.take(begun=True))
        await asyncio.sleep(0)
        outbox.put(b"4")
        outbox.put(b"5")
        assert written == [b"4", b"5"]
        outbox.end(last=b"6")
        assert await waiting == b"6"
        assert await outbox.take(begun=True) == b""

    asyncio.run(main())


def test_an_outbox_falls_back_on_its_task_when_the_connection_takes_no_more():
    async def main() -> None:
        answers = iter((False, True))
        outbox = Outbox(lambda _: next(answers))
        waiting = asyncio.create_task(outbox.take(begun=True))
        await asyncio.sleep(0)
        outbox.put(b"1")
        outbox.put(b"2")
        outbox.end(ValueError("planted"))
        assert await waiting == b"12"
        with pytest.raises(ValueError, match="planted"):
            await outbox.take(begun=True)

    asyncio.run(main())


def test_a_fault_while_one_stream_is_written_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch):
    faultless = EventTemplate.event

    def event(self: EventTemplate, text: str) -> bytes:
        if text == "F":
            raise RuntimeError("planted at /secret/path")
        return faultless(self, text)

    monkeypatch.setattr(EventTemplate, "event", event)
    engine = FakeEngine(delay=0.002)
    some = engine.ids("ok" * 5)
    engine.script = lambda prompt_ids, params: [*some, *prompt_ids, *some]
    bodies = [{"prompt": letter, "stream": True, "max_tokens": 40} for letter in "aFb"]

    async def scenario(running: Running) -> None:
        answers = await asyncio.gather(*(running.client.post(URL, json=body) for body in bodies))
        events = [parse_events(answer) for answer in answers]
        assert events[1][-1]["error"]["message"] == "Internal server error"
        for index in (0, 2):
            assert events[index][-1]["choices"][0]["finish_reason"] == "stop"
            assert len("".join(event["choices"][0]["text"] for event in events[index])) == 21
        assert running.engine.num_live == 0

    assert serving(engine, scenario) == 0


def test_ids_and_names_of_clients_do_not_confuse_the_template():
    engine = engine_saying("hello world")
    request_id = 'mark \0 and "\\u0000" and \u2028'
    events = Client.of(engine).events(URL, {"prompt": "hi", "request_id": request_id})
    assert {event["id"] for event in events} == {f"cmpl-{request_id}"}
    assert "".join(event["choices"][0]["text"] for event in events) == "hello world"
