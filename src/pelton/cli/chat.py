"""`pelton chat`: a conversation in the terminal, with an engine of its own or with any OpenAI-compatible server."""

import argparse
import contextlib
import sys
from collections.abc import Callable

from pelton.cli.answers import ChatModel, LocalModel, RemoteModel
from pelton.cli.background import BackgroundLoop
from pelton.cli.conversation import Conversation, Statistics
from pelton.cli.flags import Parser, add_engine_arguments, engine_config, given_settings
from pelton.cli.logs import configure_logging
from pelton.cli.sampling import SETTABLE, SamplingSettings, add_sampling_arguments, sampling_settings, with_setting
from pelton.errors import EngineDeadError

with contextlib.suppress(ImportError):  # Python may be built without it
    # Importing it gives input() line editing and history.
    import readline  # noqa: F401  # pyright: ignore[reportUnusedImport]

PROMPT = "> "
HELP = """\
  /help                 this list
  /reset                forget the conversation, keep the system message
  /system TEXT          start over with a system message; without TEXT, with none
  /set NAME VALUE       change a sampling parameter; without NAME, show them
  /stats                tokens and speed of the last answer
  /exit                 leave, as Ctrl-D does
Ctrl-C stops the answer that is running.
"""

Write = Callable[[str], None]


def add_arguments(parser: Parser) -> None:
    add_engine_arguments(parser, groups=("model", "engine", "logging"))
    add_sampling_arguments(parser)
    parser.add_argument("--system", metavar="TEXT", help="system message")
    remote = parser.add_argument_group("a server instead of an engine here")
    remote.add_argument("--url", help="base URL of an OpenAI-compatible server; MODEL is then its name there")
    remote.add_argument("--api-key", metavar="KEY", help="sent as a bearer token")


def run(args: argparse.Namespace) -> int:
    surplus = given_settings(args).keys() - {"model", "log_level"}
    if args.url is not None and (surplus or args.config):
        raise ValueError(f"--url talks to a server that is set up already: leave out {', '.join(surplus) or 'config'}")
    if args.url is None and args.api_key is not None:
        raise ValueError("--api-key is for a server: give its --url")
    settings = sampling_settings(args)
    config = engine_config(args, log_level="warning")
    configure_logging(config.log_level)
    with BackgroundLoop() as loop:
        if args.url is not None:
            model: ChatModel = loop.run(RemoteModel.connect(args.url, args.api_key, config.model))
        else:
            model = loop.run(LocalModel.start(config))
        try:
            session = ChatSession(model, Conversation(args.system), loop, settings, write)
            write(f"Talking to {model.name}. /help lists the commands, Ctrl-D leaves.\n")
            session.run(input)
        finally:
            loop.run(model.close())
    return 0


def write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


class ChatSession:
    """Reads lines, answers them, obeys commands."""

    def __init__(
        self,
        model: ChatModel,
        conversation: Conversation,
        loop: BackgroundLoop,
        settings: SamplingSettings,
        write: Write,
    ) -> None:
        self._model = model
        self._conversation = conversation
        self._loop = loop
        self._settings = settings
        self._write = write
        self._statistics: Statistics | None = None
        self._commands: dict[str, Callable[[str], None]] = {
            "/help": lambda _: write(HELP),
            "/reset": lambda _: self._conversation.reset(),
            "/system": self._set_system,
            "/set": self._set,
            "/stats": self._show_statistics,
        }

    def run(self, read_line: Callable[[str], str]) -> None:
        """Until /exit or the end of input."""
        while True:
            try:
                line = read_line(PROMPT).strip()
            except EOFError:
                self._write("\n")
                return
            except KeyboardInterrupt:  # drops the line that was being typed, as a shell does
                self._write("\n")
                continue
            if line in ("/exit", "/quit"):
                return
            if line:
                self.take(line)

    def take(self, line: str) -> None:
        """Obey a command or answer a message. Errors are shown, never raised."""
        name, _, rest = line.partition(" ")
        try:
            if name in self._commands:
                self._commands[name](rest.strip())
            elif name.startswith("/"):
                raise ValueError(f"no command {name}; /help lists them")
            else:
                self._answer(line)
        except (ValueError, OSError, EngineDeadError) as error:
            self._write(f"error: {error}\n")

    def _answer(self, text: str) -> None:
        answer = self._conversation.ask(text, self._model, self._settings, self._write)
        with contextlib.suppress(KeyboardInterrupt):
            self._statistics = self._loop.run(answer)
        self._write("\n")

    def _set_system(self, text: str) -> None:
        self._conversation.set_system(text or None)

    def _set(self, rest: str) -> None:
        name, _, value = rest.partition(" ")
        if value:
            self._settings = with_setting(self._settings, name, value.strip())
        elif name:
            raise ValueError("/set takes a name and a value, as in /set temperature 0.7")
        else:
            for each, meaning in SETTABLE.items():
                self._write(f"  {each:20} {self._settings.get(each, 'default')!s:8} {meaning}\n")

    def _show_statistics(self, _: str) -> None:
        self._write(f"{self._statistics or 'no complete answer yet'}\n")
