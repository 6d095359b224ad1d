"""Entry point of the `pelton` command: imports only the subcommand that was asked for."""

import difflib
import importlib
import logging
import os
import sys
from collections.abc import Sequence

import pelton
from pelton.errors import EngineDeadError

logger = logging.getLogger(__name__)

# The module of each subcommand has `add_arguments(parser)` and `run(args) -> exit code`.
COMMANDS = {
    "serve": ("pelton.cli.serve", "serve a model over the OpenAI API"),
    "chat": ("pelton.cli.chat", "talk to a model, or to a server, in the terminal"),
    "run": ("pelton.cli.run", "complete one prompt and leave"),
    "pull": ("pelton.cli.pull", "download a model"),
    "bench": ("pelton.cli.bench", "measure a server or the engine alone"),
    "doctor": ("pelton.cli.doctor", "show hardware, kernels and what a model would get"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 2 for bad input, 1 for failures, 130 after Ctrl-C."""
    try:
        return dispatch(list(sys.argv[1:] if argv is None else argv))
    except ValueError as error:
        return _fail(error, 2)
    except BrokenPipeError:
        # The reader (head, less) went away. Point stdout elsewhere, or the interpreter's last flush fails again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (OSError, EngineDeadError) as error:
        return _fail(error, 1)
    except KeyboardInterrupt:
        return 130


def dispatch(arguments: list[str]) -> int:
    """Run one subcommand; ValueError for an unknown one."""
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(usage())
        return 0 if arguments else 2
    name, *rest = arguments
    if name in ("-V", "--version"):
        sys.stdout.write(f"pelton {pelton.__version__}\n")
        return 0
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"the commands are: {', '.join(COMMANDS)}"
        raise ValueError(f"unknown command {name!r}; {hint}")
    module_name, description = COMMANDS[name]
    run_command = importlib.import_module("pelton.cli.flags").run_command
    return run_command(f"pelton {name}", description, importlib.import_module(module_name), rest)


def usage() -> str:
    """The help text of the bare command."""
    commands = "\n".join(f"  {name:8} {description}" for name, (_, description) in COMMANDS.items())
    return (
        "usage: pelton COMMAND [ARGUMENTS]\n\n"
        f"{commands}\n\n"
        "pelton COMMAND --help explains a command; pelton --version shows the version.\n"
    )


def _fail(error: Exception, code: int) -> int:
    logger.debug("traceback", exc_info=error)
    sys.stderr.write(f"pelton: error: {error}\n")
    return code
