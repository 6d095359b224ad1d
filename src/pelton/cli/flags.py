"""Command-line flags and the configuration file, both derived from the fields of EngineConfig."""

import argparse
import dataclasses
import difflib
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol

import msgspec

from pelton.cli.refused import REFUSED_FLAGS
from pelton.config import EngineConfig, field_type

GROUPS = ("model", "engine", "server", "logging")
DEMO_MODEL = "demo"  # names the embedded model where one has to be named
_Field = dataclasses.Field[Any]


class Parser(argparse.ArgumentParser):
    """argparse that takes no abbreviations and raises ValueError instead of printing usage and exiting."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 (argparse passes its own to subparsers)
        options.setdefault("allow_abbrev", False)
        super().__init__(**options)
        self.set_defaults(parser=self)  # the chosen subcommand's parser wins: messages are about its flags

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


class Command(Protocol):
    """The module of a subcommand."""

    def add_arguments(self, parser: Parser) -> None: ...

    def run(self, args: argparse.Namespace) -> int:
        """Returns the exit code."""
        ...


def run_command(prog: str, description: str, command: Command, arguments: Sequence[str]) -> int:
    """Parse a subcommand's arguments and run it."""
    parser = Parser(prog=prog, description=description)
    command.add_arguments(parser)
    return command.run(parse_arguments(parser, arguments))


def parse_arguments(parser: Parser, arguments: Sequence[str]) -> argparse.Namespace:
    """Parse; an unknown flag raises ValueError with the reason it is refused or the closest known flag."""
    namespace, surplus = parser.parse_known_args(arguments)
    for argument in surplus:
        if argument.startswith("-"):
            raise ValueError(_explain_unknown(namespace, argument.split("=", 1)[0]))
    if surplus:
        raise ValueError(f"unexpected argument {surplus[0]!r}; see {namespace.parser.prog} --help")
    return namespace


def add_engine_arguments(parser: Parser, groups: Sequence[str] = GROUPS) -> None:
    """Add `--config`, the positional model and one flag for each field of the given groups."""
    parser.set_defaults(takes_engine_settings=True)
    sections = {group: parser.add_argument_group(f"{group} settings") for group in groups}
    for spec in dataclasses.fields(EngineConfig):
        if spec.metadata["group"] in sections:
            _add_setting(sections[spec.metadata["group"]].add_argument, spec)
    sections[groups[0]].add_argument(
        "--config", metavar="FILE", help="TOML or JSON file with any of the settings; flags win over it"
    )


def engine_config(args: argparse.Namespace, **defaults: object) -> EngineConfig:
    """The configuration of flags over file over the command's own `defaults`.

    Raises:
        ValueError: an unknown key or a bad value; names the setting, and the file when it is at fault.
    """
    values: dict[str, object] = dict(defaults)
    if args.config is not None:
        values.update(read_config_file(Path(args.config)))
    values |= given_settings(args)
    if values.get("model") == DEMO_MODEL and not Path(DEMO_MODEL).exists():
        values["model"] = None
    return EngineConfig.from_mapping(values)


def given_settings(args: argparse.Namespace) -> dict[str, object]:
    """The settings that stand on the command line, by field name, values as typed."""
    fields = (spec.name for spec in dataclasses.fields(EngineConfig))
    return {name: getattr(args, _destination(name)) for name in fields if hasattr(args, _destination(name))}


def read_config_file(path: Path) -> dict[str, object]:
    """Settings by field name from a TOML or JSON file, each checked so that an error names the file."""
    try:
        values = _load_mapping(path)
        EngineConfig.from_mapping(values)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; --config takes a TOML or JSON file") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return {key.replace("-", "_"): value for key, value in values.items()}


def _load_mapping(path: Path) -> Mapping[str, object]:
    if path.suffix == ".toml":
        return tomllib.loads(path.read_text())
    if path.suffix == ".json":
        return msgspec.json.decode(path.read_bytes(), type=dict[str, object])
    raise ValueError("a configuration file is TOML or JSON and its name ends in .toml or .json")


def flag_names(spec: _Field) -> tuple[str, ...]:
    """The option strings of a field, without the `--no-` form: `--page-size`, `--block-size`."""
    return tuple("--" + name.replace("_", "-") for name in (spec.name, *spec.metadata["aliases"]))


def _add_setting(add_argument: Callable[..., argparse.Action], spec: _Field) -> None:
    """One flag. Values stay strings (EngineConfig converts them) and absent flags stay out of the namespace."""
    destination, names = _destination(spec.name), flag_names(spec)
    options: dict[str, Any] = {"default": argparse.SUPPRESS, "help": _help(spec)}
    if field_type(spec) is bool:
        add_argument(*names, dest=destination, action=argparse.BooleanOptionalAction, **options)
        return
    metavar = _metavar(spec)
    if spec.metadata["positional"]:
        add_argument(destination, nargs="?", metavar=metavar, **options)
        add_argument(*names, dest=destination, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        return
    action = "append" if field_type(spec) is tuple else "store"
    add_argument(*names, dest=destination, action=action, metavar=metavar, **options)


def _destination(name: str) -> str:
    """Keeps settings apart from a command's own arguments in the namespace."""
    return f"setting_{name}"


def _metavar(spec: _Field) -> str:
    if spec.metadata["choices"] is not None:
        return "{" + ",".join(spec.metadata["choices"]) + "}"
    if spec.metadata["positional"]:
        return spec.name.upper()
    return "SIZE" if spec.metadata["size"] else {int: "N", float: "X"}.get(field_type(spec), "TEXT")


def _help(spec: _Field) -> str:
    text = spec.metadata["help"].replace("%", "%%")
    if spec.default in (None, ()):
        return text
    shown = ("on" if spec.default else "off") if field_type(spec) is bool else spec.default
    return f"{text} (default: {shown})"


def _explain_unknown(namespace: argparse.Namespace, flag: str) -> str:
    if getattr(namespace, "takes_engine_settings", False):
        reason = REFUSED_FLAGS.get(flag) or REFUSED_FLAGS.get(flag.replace("--no-", "--", 1))
        if reason is not None:
            return f"{flag} does not exist here: {reason}"
    parser: Parser = namespace.parser
    known = [name for name in parser._option_string_actions if name.startswith("--")]  # pyright: ignore[reportPrivateUsage]
    close = difflib.get_close_matches(flag.replace("_", "-"), known, n=1, cutoff=0.7)
    hint = f"did you mean {close[0]}?" if close else f"see {parser.prog} --help"
    return f"unknown flag {flag}; {hint}"
