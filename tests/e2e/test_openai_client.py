"""`pelton serve` with the embedded model, as the official OpenAI client sees it."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

pytestmark = pytest.mark.e2e

KEY = "e2e-key"
QUESTION = [{"role": "user", "content": "What is the capital of Germany?"}]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_healthy(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    pytest.fail(f"not healthy after 60 s:\n{log.read_text()}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a running server. When the tests are done it must end by SIGTERM with exit code 0."""
    port = free_port()
    log = tmp_path_factory.mktemp("serve") / "log"
    command = [str(Path(sys.executable).with_name("pelton")), "serve", "--port", str(port), "--api-key", KEY]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
        try:
            wait_healthy(process, f"http://127.0.0.1:{port}", log)
            yield f"http://127.0.0.1:{port}"
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 0, log.read_text()
        finally:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)


@pytest.fixture
def client(server: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server}/v1", api_key=KEY, max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
def model(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id


def gauge(server: str, name: str) -> float:
    text = httpx.get(f"{server}/metrics", headers={"Authorization": f"Bearer {KEY}"}).text
    match = re.search(rf"^{name}{{[^}}]*}} (\S+)$", text, re.MULTILINE)
    assert match is not None, name
    return float(match[1])


def test_a_chat_streamed_and_whole_is_the_same_and_right(client: openai.OpenAI, model: str):
    whole = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=24)
    content = whole.choices[0].message.content or ""
    assert "Berlin" in content
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    stream = client.chat.completions.create(
        model=model,
        messages=QUESTION,
        temperature=0,
        max_tokens=24,
        stream=True,
        stream_options={"include_usage": True},
    )
    *chunks, last = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == content
    assert last.usage is not None
    assert last.usage.completion_tokens == whole.usage.completion_tokens


def test_seeded_choices_differ_and_come_again(client: openai.OpenAI, model: str):
    def texts() -> list[str]:
        answer = client.completions.create(
            model=model, prompt=["Once upon a time", "The sea"], n=3, seed=42, temperature=1.0, max_tokens=12
        )
        return [choice.text for choice in answer.choices]

    first = texts()
    assert len(set(first)) == 6
    assert texts() == first


def test_logprobs_agree_with_greedy_choice(client: openai.OpenAI, model: str):
    answer = client.chat.completions.create(
        model=model, messages=QUESTION, temperature=0, max_tokens=5, logprobs=True, top_logprobs=5
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    for entry in logprobs.content or []:
        assert len(entry.top_logprobs) == 5
        assert entry.token == entry.top_logprobs[0].token
        assert entry.logprob == pytest.approx(entry.top_logprobs[0].logprob)


def test_the_client_raises_its_own_error_types(client: openai.OpenAI, server: str, model: str):
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.chat.completions.create(model="unknown", messages=QUESTION)
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=model, messages=QUESTION, temperature=3)
    assert refused.value.param == "temperature"
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        client.completions.create(model=model, prompt="word " * 20_000)
    stranger = openai.OpenAI(base_url=f"{server}/v1", api_key="wrong", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()


def test_streams_that_hang_up_free_everything(client: openai.OpenAI, server: str, model: str):
    for _ in range(5):
        stream = client.completions.create(
            model=model, prompt="Count:", max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        stream.close()
    started = time.monotonic()
    answer = client.completions.create(model=model, prompt="The", max_tokens=2, temperature=0)
    assert answer.choices[0].text
    assert time.monotonic() - started < 5
    names = ("pelton:num_requests_running", "pelton:num_requests_waiting", "pelton:kv_cache_usage_perc")
    while any(gauge(server, name) for name in names):
        assert time.monotonic() - started < 10, "gauges do not return to 0"
        time.sleep(0.1)
