"""Long texts and strange templates: they wait for each other, and nothing else waits for them."""

import asyncio
import functools
import threading

import httpx
import pytest

from pelton.errors import RequestError
from pelton.http.text_pool import NUM_THREADS, TextPool
from pelton.tokenizer import template_sandbox

from fakes import URL, Client, FakeEngine, Running, serving, until

CHAT = "/v1/chat/completions"
LONG = "x" * 2_000_000
NESTED_LOOPS = "{% for a in range(99999) %}" * 4 + "{% endfor %}" * 4
MACRO = "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}"
TEMPLATES = {
    "loops without end": NESTED_LOOPS,
    "loops that write": "{% for a in range(99999) %}{% for b in range(99999) %}xxxxxxxx{% endfor %}{% endfor %}",
    "a huge range": "{{ range(10**12) | list | length }}",
    "a huge string": "{{ 'x' * 10**10 }}",
    "a string that doubles": "{% set ns = namespace(s='xx') %}{% for a in range(99) %}{% set ns.s = ns.s ~ ns.s %}"
    "{% endfor %}{{ ns.s }}",
    "a list that doubles": "{% set ns = namespace(s=[1]) %}{% for a in range(99) %}{% set ns.s = ns.s + ns.s %}"
    "{% endfor %}{{ ns.s | length }}",
    "a huge power": "{{ 10 ** (10 ** 10) }}",
    "a wide field": "{{ '%2000000000d' % 1 }}",
    "a macro without end": MACRO,
    "deep brackets": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "deep blocks": "{% if 1 %}" * 2000 + "x" + "{% endif %}" * 2000,
    "the interpreter": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "an import": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "a file": "{% include '/etc/passwd' %}",
    "a division by zero": "{{ 1 // 0 }}",
    "no syntax": "{% for %}",
    "too much of it": "{# x #}" * 20000,
}


class Gate:
    """Makes the tokenizer wait, in whichever thread it runs, for texts longer than 10,000 characters."""

    def __init__(self, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self._open = threading.Event()
        self.num_inside = 0
        encode = engine.tokenizer.encode

        def gated(text: str, *, add_special_tokens: bool = True) -> list[int]:
            if len(text) > 10_000:
                self.num_inside += 1
                assert self._open.wait(20)
                return [1, 2, 3]
            return encode(text, add_special_tokens=add_special_tokens)

        monkeypatch.setattr(engine.tokenizer, "encode", gated)
        monkeypatch.setattr("pelton.http.openai.prompts._refuse_hopeless", lambda *_: None)

    def open(self) -> None:
        self._open.set()


def test_while_long_texts_are_tokenized_everything_else_goes_on(monkeypatch: pytest.MonkeyPatch):
    engine = FakeEngine()
    engine.script = engine.ids("hello")
    gate = Gate(engine, monkeypatch)

    async def scenario(running: Running) -> None:
        def ask(body: dict[str, object], url: str) -> asyncio.Task[httpx.Response]:
            return asyncio.create_task(running.client.post(url, json=body))

        flood = [
            *(ask({"prompt": LONG}, URL) for _ in range(4)),
            *(ask({"messages": [{"role": "user", "content": LONG}]}, CHAT) for _ in range(4)),
            *(ask({"prompt": LONG}, "/tokenize") for _ in range(4)),
        ]
        await until(lambda: gate.num_inside == NUM_THREADS)
        assert (await running.client.get("/health")).status_code == 200
        answer = await running.client.post(URL, json={"prompt": "hi"})
        assert answer.json()["choices"][0]["text"] == "hello"
        assert await asyncio.to_thread(lambda: "the default threads are free") == "the default threads are free"
        assert not any(task.done() for task in flood)
        assert gate.num_inside == NUM_THREADS
        gate.open()
        assert [task.status_code for task in await asyncio.gather(*flood)] == [200] * 12

    serving(engine, scenario)


def test_more_long_texts_than_may_wait_are_a_429(monkeypatch: pytest.MonkeyPatch):
    engine = FakeEngine(script=[])
    gate = Gate(engine, monkeypatch)
    monkeypatch.setattr("pelton.http.app.TextPool", functools.partial(TextPool, num_threads=1, max_waiting=3))

    async def scenario(running: Running) -> None:
        body = {"prompt": "x" * 20_000}
        flood = [asyncio.create_task(running.client.post(URL, json=body)) for _ in range(5)]
        done, waiting = await asyncio.wait(flood, return_when=asyncio.FIRST_COMPLETED)
        (refused,) = done
        assert refused.result().status_code == 429
        assert int(refused.result().headers["retry-after"]) >= 1
        gate.open()
        assert [response.status_code for response in await asyncio.gather(*waiting)] == [200] * 4

    serving(engine, scenario)


def test_who_leaves_the_queue_leaves_nothing_behind():
    async def scenario() -> None:
        pool = TextPool(num_threads=1, max_waiting=2)
        held = threading.Event()
        running = asyncio.create_task(pool.run(lambda: held.wait(20)))
        await asyncio.sleep(0)
        ran: list[int] = []
        waiting = [asyncio.create_task(pool.run(lambda: ran.append(1))) for _ in range(2)]
        await until(lambda: pool.num_waiting == 2)
        with pytest.raises(RequestError, match="long texts"):
            await pool.run(lambda: None)
        for task in (*waiting, running):
            task.cancel()
        await asyncio.wait((*waiting, running))
        assert pool.num_waiting == 0
        last = asyncio.create_task(pool.run(lambda: ran.append(2)))
        await until(lambda: pool.num_waiting == 1)  # the thread of the cancelled one still runs
        held.set()
        await last
        assert ran == [2]

    asyncio.run(scenario())


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES.keys())
def test_a_hostile_template_is_a_400_in_bounded_time(monkeypatch: pytest.MonkeyPatch, template: str):
    monkeypatch.setattr(template_sandbox, "MAX_SECONDS", 0.3)
    engine = FakeEngine()
    engine.script = engine.ids("canary")
    client = Client.of(engine)
    body = {"messages": [{"role": "user", "content": "hi"}], "chat_template": template}
    for url in (CHAT, "/tokenize"):
        response = client.post(url, body)
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"] in ("messages", "chat_template")
        assert "/" not in response.json()["error"]["message"].replace("'/etc/passwd'", "").replace("1 // 0", "")
    assert client.post(URL, {"prompt": "hi"}).json()["choices"][0]["text"] == "canary"


def test_while_a_template_loops_the_server_answers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(template_sandbox, "MAX_SECONDS", 2.0)
    engine = FakeEngine(script=[])

    async def scenario(running: Running) -> None:
        body = {"messages": [{"role": "user", "content": "hi"}], "chat_template": NESTED_LOOPS}
        looping = asyncio.create_task(running.client.post(CHAT, json=body))
        for _ in range(5):
            await asyncio.sleep(0.05)
            assert (await running.client.get("/health")).status_code == 200
        assert not looping.done()
        assert (await looping).status_code == 400

    serving(engine, scenario)
