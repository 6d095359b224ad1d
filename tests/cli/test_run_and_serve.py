"""`pelton run` and `pelton serve` around a scripted engine."""

import io
import shlex
from types import SimpleNamespace

import pytest

from pelton.cli import run as run_module
from pelton.cli.answers import LocalModel
from pelton.cli.main import main
from pelton.cli.serving import address, banner, example
from pelton.config import EngineConfig
from pelton.types import Delta, EngineStats


class WordTokenizer:
    """One id a word; the template puts each message on a line of its own."""

    def __init__(self, template: str | None = "template") -> None:
        self.chat_template = template
        self.encoded: list[tuple[str, bool]] = []

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self.encoded.append((text, add_special_tokens))
        return list(range(1, len(text.split()) + 1))

    def apply_chat_template(self, messages) -> str:
        return "\n".join(f"{message['role']}: {message['content']}" for message in messages)


class ScriptedEngine:
    def __init__(self, config: EngineConfig, template: str | None = "template") -> None:
        self.config = config
        self.info = SimpleNamespace(sampling_defaults={"top_p": 0.9})
        self.tokenizer = WordTokenizer(template)
        self.params = []
        self.stopped = False

    async def generate(self, prompt_ids, params):
        self.params.append(params)
        yield Delta(text="Hello", token_ids=(5,), num_cached_tokens=1)
        yield Delta(text="", token_ids=(6,))
        yield Delta(text=" there", token_ids=(7, 8), finish_reason="stop")

    async def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def engine(monkeypatch):
    """The engine that `pelton run` starts."""
    engine = ScriptedEngine(EngineConfig())

    async def start(config: EngineConfig) -> LocalModel:
        return LocalModel(engine, engine.stop)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(run_module.LocalModel, "start", start)
    return engine


def test_the_prompt_goes_through_the_template_and_the_answer_to_stdout(engine, capsys):
    assert main(["run", "demo", "Say hello", "--max-tokens", "9", "--temperature", "0", "--system", "Be kind"]) == 0
    assert capsys.readouterr() == ("Hello there\n", "")
    assert engine.tokenizer.encoded == [("system: Be kind\nuser: Say hello", False)]
    [params] = engine.params
    assert (params.max_tokens, params.temperature, params.top_p) == (9, 0.0, 0.9)
    assert engine.stopped


@pytest.mark.parametrize("template", ["template", None])
def test_raw_prompts_and_models_without_a_template_continue_the_text(engine, template):
    engine.tokenizer.chat_template = template
    assert main(["run", "demo", "Once upon", *(["--raw"] if template else [])]) == 0
    assert engine.tokenizer.encoded == [("Once upon", True)]


def test_stats_go_to_stderr(engine, capsys):
    assert main(["run", "demo", "Say hello", "--stats"]) == 0
    assert "3 tokens in (1 cached), 4 out; first text after" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["run", "demo"], ["run", "demo", "-"]])
def test_the_prompt_can_come_from_a_pipe(engine, monkeypatch, arguments):
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe\n"))
    assert main(arguments) == 0
    assert engine.tokenizer.encoded == [("user: from a pipe", False)]


def test_no_prompt_is_an_error(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO(" \n"))
    assert main(["run", "demo"]) == 2
    assert "the prompt on stdin is empty" in capsys.readouterr().err
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stdin", terminal)
    assert main(["run", "demo"]) == 2
    assert "no prompt; give one after the model" in capsys.readouterr().err


def test_a_system_message_needs_a_template(engine, capsys):
    engine.tokenizer.chat_template = None
    assert main(["run", "demo", "x", "--system", "y"]) == 2
    assert main(["run", "demo", "x", "--system", "y", "--raw"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "this model has none" in first
    assert "--raw leaves out" in second
    assert engine.stopped


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "http://127.0.0.1:8000"),
        ({"host": "0.0.0.0", "port": 9}, "http://127.0.0.1:9"),
        ({"host": "::"}, "http://[::1]:8000"),
        ({"host": "example.com"}, "http://example.com:8000"),
        ({"uds": "/run/p.sock"}, "unix:/run/p.sock"),
    ],
)
def test_the_address_is_one_that_a_client_can_use(settings, expected):
    assert address(EngineConfig(**settings)) == expected


def test_the_example_is_a_shell_command_without_the_key():
    words = shlex.split(example(EngineConfig(api_key=("secret",))))
    assert words[:3] == ["curl", "-N", "http://127.0.0.1:8000/v1/chat/completions"]
    assert "Authorization: Bearer $API_KEY" in words
    assert "secret" not in " ".join(words)
    assert shlex.split(example(EngineConfig(uds="/a b.sock")))[2:5] == [
        "--unix-socket",
        "/a b.sock",
        "http://localhost/v1/chat/completions",
    ]


def test_the_banner_has_what_was_chosen():
    config = EngineConfig(
        device="cpu",
        num_threads=3,
        dtype="bfloat16",
        kv_cache_dtype="bfloat16",
        max_model_len=64,
        kv_cache_memory=2**20,
    )
    engine = SimpleNamespace(
        config=config,
        info=SimpleNamespace(architecture="LlamaForCausalLM", num_parameters=135e6),
        stats=EngineStats(num_pages=10, page_size=16),
    )
    text = banner(engine, 1.25)  # pyright: ignore[reportArgumentType]
    for expected in (
        "at http://127.0.0.1:8000",
        "LlamaForCausalLM, 135 M weights, context of 64 tokens",
        "cpu, 3 threads, bfloat16",
        "1.0 MiB in bfloat16: 160 tokens",
        "in 1.2 s",
        "curl -N",
    ):
        assert expected in text
