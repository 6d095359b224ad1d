"""Flags and configuration files against the fields of EngineConfig."""

import dataclasses

import pytest

from pelton.cli.flags import Parser, add_engine_arguments, engine_config, flag_names, parse_arguments
from pelton.cli.refused import REFUSED_FLAGS
from pelton.config import EngineConfig, field_type

# A value of each field that is not its default.
OTHER_VALUES: dict[str, object] = {
    "model": "org/name",
    "revision": "main",
    "download_dir": "/models",
    "served_model_name": "tiny",
    "chat_template": "template.jinja",
    "dtype": "float32",
    "weight_format": "native",
    "quantize": "int8",
    "max_model_len": 512,
    "seed": 7,
    "device": "cpu",
    "num_threads": 3,
    "max_num_seqs": 5,
    "max_num_batched_tokens": 99,
    "page_size": 32,
    "kv_cache_memory": 4096,
    "kv_cache_dtype": "bfloat16",
    "enable_prefix_caching": False,
    "host": "0.0.0.0",
    "port": 9000,
    "uds": "/run/pelton.sock",
    "api_key": ("a", "b"),
    "pooling_type": "mean",
    "tool_call_parser": "mistral",
    "reasoning_parser": "none",
    "max_queue": 6,
    "max_concurrent_requests": 4,
    "max_requests_per_minute": 60,
    "max_tokens_per_minute": 1000,
    "request_timeout": 2.5,
    "allowed_origins": ("https://a.example", "https://b.example"),
    "shutdown_timeout": 1.5,
    "stuck_after": 2.5,
    "vllm_metrics": False,
    "log_level": "debug",
    "generation_config": "none",
    "override_generation_config": '{"temperature": 0.6}',
}


def parse(*arguments: str, **defaults: object) -> EngineConfig:
    parser = Parser(prog="pelton test")
    add_engine_arguments(parser)
    return engine_config(parse_arguments(parser, arguments), **defaults)


def as_flags(name: str, value: object) -> list[str]:
    flag = "--" + name.replace("_", "-")
    if value is False:
        return ["--no-" + flag[2:]]
    if isinstance(value, tuple):
        return [part for item in value for part in (flag, item)]
    return [flag, str(value)]


def test_without_flags_everything_is_the_default():
    assert parse() == EngineConfig()


@pytest.mark.parametrize("name", [spec.name for spec in dataclasses.fields(EngineConfig)])
def test_each_field_has_its_flag(name):
    value = OTHER_VALUES[name]
    assert parse(*as_flags(name, value)) == dataclasses.replace(EngineConfig(), **{name: value})


def test_all_flags_together_are_all_fields():
    arguments = [part for name, value in OTHER_VALUES.items() for part in as_flags(name, value)]
    assert parse(*arguments) == EngineConfig(**OTHER_VALUES)  # pyright: ignore[reportArgumentType]


def test_there_are_no_flags_beyond_the_fields():
    parser = Parser(prog="pelton test")
    add_engine_arguments(parser)
    fields = dataclasses.fields(EngineConfig)
    expected = {name for spec in fields for name in flag_names(spec)}
    expected |= {"--no-" + name[2:] for spec in fields if field_type(spec) is bool for name in flag_names(spec)}
    assert set(parser._option_string_actions) == expected | {"--config", "-h", "--help"}


def test_aliases_and_sizes():
    config = parse("--block-size", "48", "--kv-cache-memory-bytes", "2G", "--max-waiting=9")
    assert (config.page_size, config.kv_cache_memory, config.max_queue) == (48, 2**31, 9)


def test_the_model_is_the_positional_and_demo_is_the_embedded_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parse("org/name", "--port", "9").model == "org/name"
    assert parse("demo").model is None
    (tmp_path / "demo").mkdir()
    assert parse("demo").model == "demo"


def test_help_has_groups_and_defaults():
    parser = Parser(prog="pelton test")
    add_engine_arguments(parser)
    text = " ".join(parser.format_help().split())
    for expected in ("server settings:", "port to listen on (default: 8000)", "(default: on)", "{auto,cpu}"):
        assert expected in text
    assert "==SUPPRESS==" not in text
    assert "None" not in text


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("c.toml", 'port = 9000\nmax-queue = 5\napi_key = ["file"]\n'),
        ("c.json", '{"port": 9000, "max_queue": 5, "api-key": ["file"]}'),
    ],
)
def test_flags_win_over_the_file_and_the_file_over_defaults(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    config = parse("--config", str(tmp_path / name), "--port", "9001", "--api-key", "flag", log_level="error")
    assert (config.port, config.max_queue, config.api_key) == (9001, 5, ("flag",))
    assert config.log_level == "error"  # the command's own default


def test_the_file_wins_over_the_commands_default(tmp_path):
    (tmp_path / "c.toml").write_text('log-level = "debug"')
    assert parse("--config", str(tmp_path / "c.toml"), log_level="error").log_level == "debug"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("c.toml", "prot = 9", "unknown setting 'prot'; did you mean port"),
        ("c.toml", "[server]\nport = 9", "unknown setting 'server'"),
        ("c.toml", "port = 0", "port must be at least 1"),
        ("c.toml", "port = ", "Invalid value"),
        ("c.json", "[1]", "Expected `object`"),
        ("c.json", '{"port": "x"}', "port must be an integer"),
        ("c.yaml", "port: 9", "TOML or JSON"),
    ],
)
def test_errors_in_a_file_name_it(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message) as caught:
        parse("--config", str(tmp_path / name))
    assert str(caught.value).startswith(str(tmp_path / name))


@pytest.mark.parametrize("flag", sorted(REFUSED_FLAGS))
def test_refused_flags_say_why(flag):
    with pytest.raises(ValueError, match=f"{flag} does not exist here: ") as caught:
        parse(flag, "1")
    assert REFUSED_FLAGS[flag] in str(caught.value)


def test_refused_flags_are_recognized_in_other_spellings():
    with pytest.raises(ValueError, match="always chunked"):
        parse("--no-enable-chunked-prefill")
    with pytest.raises(ValueError, match="--kv-cache-memory 4G"):
        parse("--gpu-memory-utilization=0.9", "model")


def test_no_refused_flag_exists():
    assert not {name for spec in dataclasses.fields(EngineConfig) for name in flag_names(spec)} & set(REFUSED_FLAGS)


def test_flags_that_a_reason_recommends_exist():
    known = {name for spec in dataclasses.fields(EngineConfig) for name in flag_names(spec)}
    named = {
        word.strip(",;:.") for reason in REFUSED_FLAGS.values() for word in reason.split() if word.startswith("--")
    }
    assert named <= known


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-modl-len", "5"], "unknown flag --max-modl-len; did you mean --max-model-len?"),
        (["--max_model_len=5"], "unknown flag --max_model_len; did you mean --max-model-len?"),
        (["--qqqqqqqq"], "unknown flag --qqqqqqqq; see pelton test --help"),
        (["--por", "5"], "unknown flag --por; did you mean --port?"),  # no abbreviations
        (["one", "two"], "unexpected argument 'two'; see pelton test --help"),
        (["--port"], "argument --port: expected one argument"),
    ],
)
def test_unknown_flags_get_a_hint(arguments, message):
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        parse(*arguments)


def test_a_configuration_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"none\.toml: No such file or directory; --config takes"):
        parse("--config", str(tmp_path / "none.toml"))
