"""`pelton bench` as a command: what it prints, writes and returns."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

import pelton
from bench.stub_server import StubServer
from pelton.bench.throughput import ThroughputBenchmark, random_token_ids
from pelton.cli.main import main


@contextlib.contextmanager
def serving(server: StubServer) -> Iterator[StubServer]:
    """The stub on a loop of its own, as the command brings another."""
    started, ended = threading.Event(), threading.Event()

    async def serve() -> None:
        async with server.running():
            started.set()
            await asyncio.to_thread(ended.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(10)
    try:
        yield server
    finally:
        ended.set()
        thread.join()


def test_tables_and_a_file(tmp_path, capsys):
    file = tmp_path / "numbers.json"
    with serving(StubServer()) as server:
        arguments = ["--num-prompts", "6", "--random-input-len", "8", "--concurrency", "2", "--json", str(file)]
        assert main(["bench", "serve", "--base-url", server.url, *arguments]) == 0
        assert len([body for _, body in server.requests if "prompt" in body and "stream" in body]) == 7  # one warm-up
    numbers = json.loads(file.read_text())
    assert numbers["output_tokens"] == 36
    text = capsys.readouterr().out
    for expected in ("6 of 6", "time to first token", "output tokens per second", "us a chunk"):
        assert expected in text


def test_json_to_stdout_is_nothing_but_json(capsys):
    with serving(StubServer()) as server:
        arguments = ["--num-prompts", "2", "--input-len", "4", "--endpoint", "chat", "--json", "-"]
        assert main(["bench", "serve", "--base-url", server.url, *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["num_requests"] == 2


def test_failed_requests_give_exit_code_1_and_reasons(capsys):
    with serving(StubServer(status=429)) as server:
        assert main(["bench", "serve", "--base-url", server.url, "--num-prompts", "3", "--warmup", "0"]) == 1
    assert "pelton: 3 failed: HTTP 429: queue is full\n" in capsys.readouterr().err


def test_an_unreachable_server_is_one_line(capsys):
    assert main(["bench", "serve", "--base-url", "http://127.0.0.1:1"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("pelton: error: ")
    assert error.count("\n") == 1


class FakeLLM:
    """Gives every prompt its tokens; keeps what it was asked."""

    def __init__(self, **settings) -> None:
        self.settings = settings
        self.info = SimpleNamespace(vocab_size=50)
        self.calls: list[tuple] = []
        instances.append(self)

    def generate(self, prompts, params, *, use_tqdm):
        self.calls.append((prompts, params))
        output = SimpleNamespace(token_ids=[1] * params.max_tokens)
        return [SimpleNamespace(prompt_token_ids=prompt, outputs=[output]) for prompt in prompts]


instances: list[FakeLLM] = []


def test_throughput_runs_the_batch_through_the_engine(monkeypatch, capsys):
    monkeypatch.setitem(pelton.__dict__, "LLM", FakeLLM)  # setattr would load the real one first
    instances.clear()
    arguments = ["demo", "--num-prompts", "3", "--input-len", "5", "--output-len", "7", "--seed", "4", "--json", "-"]
    assert main(["bench", "throughput", *arguments, "--max-num-seqs", "2"]) == 0
    [llm] = instances
    assert (llm.settings["model"], llm.settings["max_num_seqs"]) == (None, 2)
    _, (prompts, params) = llm.calls
    assert prompts == random_token_ids(ThroughputBenchmark(num_prompts=3, input_len=5), 50, seed=4)
    assert (params.max_tokens, params.temperature, params.ignore_eos) == (7, 0.0, True)
    numbers = json.loads(capsys.readouterr().out)
    assert (numbers["prompt_tokens"], numbers["output_tokens"], numbers["num_requests"]) == (15, 21, 3)
    assert numbers["total_tokens_per_second"] == pytest.approx(36 / numbers["duration"])


def test_throughput_shows_a_table(monkeypatch, capsys):
    monkeypatch.setitem(pelton.__dict__, "LLM", FakeLLM)  # setattr would load the real one first
    assert main(["bench", "throughput", "--num-prompts", "2", "--input-len", "5"]) == 0
    assert "output tokens per second" in capsys.readouterr().out


def test_random_token_ids_are_within_the_vocabulary():
    prompts = random_token_ids(ThroughputBenchmark(num_prompts=9, input_len=40), 50, seed=1)
    assert [len(prompt) for prompt in prompts] == [40] * 9
    assert {token for prompt in prompts for token in prompt} == set(range(50))
