"""The installed command with a real engine and the embedded model."""

import re
import signal
import socket
import subprocess
import sys

import pytest

from pelton.cli.main import main

pytestmark = pytest.mark.e2e

SMALL = ["--max-model-len", "128", "--kv-cache-memory", "32M"]


def pelton(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pelton.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, input=text, timeout=120, check=True)


def test_run_answers_a_piped_prompt():
    result = pelton(
        *("run", "demo", "--max-tokens", "8", "--temperature", "0", "--stats"),
        *SMALL,
        text="What is the capital of Germany?",
    )
    assert "Berlin" in result.stdout
    assert re.search(r"\d+ tokens in \(0 cached\), \d+ out", result.stderr)


def test_chat_talks_and_leaves():
    result = pelton("chat", *SMALL, "--temperature", "0", "--max-tokens", "8", text="Say hello\n/stats\n/exit\n")
    assert "tokens in" in result.stdout


def test_serve_answers_a_load_test_and_ends_on_sigterm(capsys):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "pelton.cli", "serve", *SMALL, "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert f"http://127.0.0.1:{port}" in server.stdout.readline()
            sizes = ["--num-prompts", "3", "--concurrency", "3", "--input-len", "20", "--output-len", "4"]
            assert main(["bench", "serve", "--base-url", f"http://127.0.0.1:{port}", *sizes, "--json", "-"]) == 0
            server.send_signal(signal.SIGTERM)
            assert server.wait(30) == 0
        finally:
            server.kill()  # a failed test must not wait for ever
    numbers = capsys.readouterr().out
    assert '"prompt_tokens": 60' in numbers  # exact, by /tokenize
    assert '"output_tokens": 12' in numbers


def test_a_taken_port_is_told_before_anything_loads(capsys):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 2
    assert f"port {port} is in use; choose another with --port" in capsys.readouterr().err
