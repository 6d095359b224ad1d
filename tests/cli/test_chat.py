"""The chat session with a scripted model: conversation, commands, stopping, errors."""

import asyncio
import signal
import threading
import time

import pytest

from bench.stub_server import StubServer
from pelton.cli.answers import RemoteModel, TokenCounts
from pelton.cli.background import BackgroundLoop
from pelton.cli.chat import ChatSession
from pelton.cli.conversation import Conversation
from pelton.cli.sampling import with_setting
from pelton.errors import RequestError


class ScriptedModel:
    """Answers "<number of messages>: <last message>", "quiet" with nothing; "slow" streams for ever, "fail" fails."""

    name = "scripted"

    def __init__(self) -> None:
        self.asked: list[list[dict[str, str]]] = []
        self.settings = []
        self.cancelled = False

    async def answer(self, messages, settings, on_text) -> TokenCounts:
        self.asked.append([dict(message) for message in messages])
        self.settings.append(settings)
        if messages[-1]["content"] == "quiet":
            return TokenCounts(prompt=11, cached=3, output=1)
        on_text(f"{len(messages)}: ")
        if messages[-1]["content"] == "fail":
            raise RequestError("the context is full")
        if messages[-1]["content"] == "slow":
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.cancelled = True
                raise
        on_text(messages[-1]["content"])
        return TokenCounts(prompt=11, cached=3, output=2)

    async def close(self) -> None: ...


class Terminal:
    """Feeds lines to a session and keeps what it writes; an exception among the lines is raised at its turn."""

    def __init__(self, *lines: str | BaseException, system: str | None = None) -> None:
        self.model = ScriptedModel()
        self.output = ""
        self._lines = iter(lines)
        with BackgroundLoop() as loop:
            session = ChatSession(self.model, Conversation(system), loop, {}, self._write)
            session.run(self._read)

    def _write(self, text: str) -> None:
        self.output += text

    def _read(self, prompt: str) -> str:
        line = next(self._lines, None)
        if line is None:
            raise EOFError
        if isinstance(line, BaseException):
            raise line
        return line


def test_the_conversation_grows():
    terminal = Terminal("hello", "  ", "again")
    assert terminal.output == "1: hello\n3: again\n\n"
    assert terminal.model.asked[1] == [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "1: hello"},
        {"role": "user", "content": "again"},
    ]


def test_reset_keeps_the_system_message_and_system_starts_over():
    terminal = Terminal("one", "/reset", "two", "/system be brief", "three", "/system", "four", system="be kind")
    systems = [messages[0]["content"] if messages[0]["role"] == "system" else None for messages in terminal.model.asked]
    assert systems == ["be kind", "be kind", "be brief", None]
    assert [len(messages) for messages in terminal.model.asked] == [2, 2, 2, 1]


def test_set_changes_the_next_answers():
    terminal = Terminal("/set temperature 0", "one", "/set max-tokens 5", "/set seed 9", "/set max_tokens none", "two")
    assert terminal.model.settings == [{"temperature": 0.0}, {"temperature": 0.0, "max_tokens": None, "seed": 9}]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/set temperature 9", "error: temperature must be at least 0.0 and at most 2.0"),
        ("/set temperature warm", "error: temperature must be a number, got 'warm'"),
        ("/set temprature 1", "error: no parameter 'temprature'; did you mean temperature?"),
        ("/set temperature", "error: /set takes a name and a value"),
        ("/foo", "error: no command /foo; /help lists them"),
        ("fail", "error: the context is full"),
    ],
)
def test_errors_are_shown_and_the_chat_goes_on(line, message):
    terminal = Terminal(line, "still here")
    assert message in terminal.output
    assert terminal.output.endswith("1: still here\n\n")  # nothing of the failed exchange is remembered


def test_an_empty_answer_is_forgotten_with_its_question():
    assert Terminal("quiet", "hello").output == "\n1: hello\n\n"


def test_help_and_set_list_what_there_is():
    output = Terminal("/help", "/set top_p 0.7", "/set").output
    for expected in ("/reset", "/system", "/stats", "/exit", "temperature", "0.7", "default", "repetition_penalty"):
        assert expected in output


def test_stats_are_those_of_the_last_answer():
    output = Terminal("/stats", "hello", "/stats").output
    assert "no complete answer yet" in output
    assert "11 tokens in (3 cached), 2 out; first text after " in output


def test_ctrl_c_at_the_prompt_drops_the_line_and_exit_leaves():
    terminal = Terminal(KeyboardInterrupt(), "hello", "/exit", "never read")
    assert len(terminal.model.asked) == 1


def test_ctrl_c_stops_the_answer_and_keeps_its_text():
    def interrupt() -> None:
        time.sleep(0.3)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    terminal = Terminal("slow", "more")
    assert terminal.model.cancelled
    assert terminal.output == "1: \n3: more\n\n"
    assert terminal.model.asked[1][1] == {"role": "assistant", "content": "1: "}


def test_a_server_elsewhere_answers_over_http():
    async def ask(server: StubServer) -> tuple[str, TokenCounts]:
        async with server.running():
            model = await RemoteModel.connect(server.url + "/v1", "secret", None)
            pieces: list[str] = []
            settings = with_setting(with_setting({}, "top_p", "1"), "seed", "none")
            settings = with_setting(settings, "max_tokens", "7")
            counts = await model.answer([{"role": "user", "content": "hello"}], settings, pieces.append)
            await model.close()
            return "".join(pieces), counts

    server = StubServer()
    assert asyncio.run(ask(server)) == ("aaa", TokenCounts(7, 0, 6))
    (_, _), (path, body) = server.requests
    assert path == "/v1/chat/completions"
    assert body == {
        "model": "stub",
        "messages": [{"role": "user", "content": "hello"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "top_p": 1.0,
        "max_tokens": 7,
    }


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (StubServer(status=429), "queue is full"),
        (StubServer(final_event='{"error": {"message": "engine died"}}'), "engine died"),
    ],
)
def test_errors_of_a_server_elsewhere_are_request_errors(server, message):
    async def ask() -> None:
        async with server.running():
            model = await RemoteModel.connect(server.url, None, "stub")
            try:
                await model.answer([{"role": "user", "content": "hello"}], {}, lambda _: None)
            finally:
                await model.close()

    with pytest.raises(RequestError, match=message):
        asyncio.run(ask())
