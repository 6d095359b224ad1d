"""The `pelton` command as a program: exit codes, messages, and what it does not import."""

import importlib
import subprocess
import sys

import pytest

import pelton
from pelton.cli import main as entry
from pelton.cli.flags import Parser
from pelton.cli.main import COMMANDS, main
from pelton.errors import EngineDeadError


def imported_by(*arguments: str) -> tuple[str, set[str]]:
    """Standard output, and the modules that Python imported."""
    command = [sys.executable, "-X", "importtime", "-m", "pelton.cli", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    lines = [line for line in result.stderr.splitlines() if line.startswith("import time:")]
    return result.stdout, {line.rpartition("|")[2].strip() for line in lines}


def test_version_imports_next_to_nothing():
    output, modules = imported_by("--version")
    assert output == f"pelton {pelton.__version__}\n"
    assert "pelton.cli.main" in modules
    assert not modules & {"torch", "numpy", "asyncio", "msgspec", "argparse", "pelton.config"}


def test_help_of_serve_imports_no_server_and_no_torch():
    output, modules = imported_by("serve", "--help")
    assert "--max-model-len" in output
    assert "pelton.config" in modules
    assert not modules & {"torch", "numpy", "asyncio", "starlette", "uvicorn", "tokenizers"}


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_no_command_imports_torch(name):
    output, modules = imported_by(name, "--help")
    assert output.startswith(f"usage: pelton {name}")
    assert "torch" not in modules


def test_every_command_has_its_two_functions():
    for name, (module_name, description) in COMMANDS.items():
        module = importlib.import_module(module_name)
        module.add_arguments(Parser(prog=f"pelton {name}"))
        assert callable(module.run)
        assert description


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["serv"], "unknown command 'serv'; did you mean serve?"),
        (["xyz"], "unknown command 'xyz'; the commands are: serve, chat, run, pull, bench, doctor"),
        (["serve", "--port", "x"], "port must be an integer, got 'x'"),
        (["serve", "--swap-space", "4"], "--swap-space does not exist here: preempted requests are recomputed"),
        (["bench", "serve", "--num-prompt", "4"], "unknown flag --num-prompt; did you mean --num-prompts?"),
        (["bench", "serve", "--concurrency", "1", "--request-rate", "1"], "give one of --concurrency and"),
        (["bench"], "the following arguments are required: {serve"),
        (["doctor", "no/such/file.gguf"], "'no/such/file.gguf': no such file"),
        (["serve", "--host", "203.0.113.1"], "cannot listen on host 203.0.113.1"),
        (["run", "x", "y", "--temperature", "hot"], "temperature must be a number, got 'hot'"),
        (["run", "x", "y", "--top-p", "7"], "top_p must be above 0.0 and at most 1.0, got 7"),
        (["chat", "--url", "http://x", "--num-threads", "2"], "--url talks to a server that is set up already"),
        (["chat", "--api-key", "k"], "--api-key is for a server"),
        (["pull", "demo", "--revision", "x"], "demo is one fixed file"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, line, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"pelton: error: {line}")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "shown"),
    [
        (ValueError("bad setting"), 2, "pelton: error: bad setting\n"),
        (ConnectionRefusedError(111, "nobody listens"), 1, "pelton: error: [Errno 111] nobody listens\n"),
        (EngineDeadError("the engine died"), 1, "pelton: error: the engine died\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_exit_codes(error, code, shown, capsys, monkeypatch):
    def fail(_: list[str]) -> int:
        raise error

    monkeypatch.setattr(entry, "dispatch", fail)
    assert main([]) == code
    assert capsys.readouterr().err == shown


def test_programming_errors_are_not_hidden(monkeypatch):
    def fail(_: list[str]) -> int:
        raise AssertionError("invariant")

    monkeypatch.setattr(entry, "dispatch", fail)
    with pytest.raises(AssertionError):
        main([])


def test_without_a_command_the_usage_is_shown(capsys):
    assert main([]) == 2
    assert main(["--help"]) == 0
    usage, again = capsys.readouterr().out.split("usage: ")[1:]
    assert usage == again
    for name in COMMANDS:
        assert f"\n  {name} " in usage


def test_a_reader_that_goes_away_is_no_error():
    command = f"{sys.executable} -m pelton.cli doctor --help | head -n 1"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.startswith("usage: ")
    assert result.stderr == ""
