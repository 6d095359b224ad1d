"""`pelton run`: complete one prompt, streamed to stdout."""

import argparse
import sys

from pelton.cli.answers import LocalModel
from pelton.cli.background import BackgroundLoop
from pelton.cli.conversation import Statistics, StopWatch
from pelton.cli.flags import Parser, add_engine_arguments, engine_config
from pelton.cli.logs import configure_logging
from pelton.cli.sampling import SamplingSettings, add_sampling_arguments, sampling_settings
from pelton.config import EngineConfig


def add_arguments(parser: Parser) -> None:
    add_engine_arguments(parser, groups=("model", "engine", "logging"))
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="text to answer; - or nothing reads stdin")
    parser.add_argument("--raw", action="store_true", help="continue the text as it is, without the chat template")
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("--stats", action="store_true", help="show tokens and speed on stderr")
    add_sampling_arguments(parser)


def run(args: argparse.Namespace) -> int:
    if args.raw and args.system is not None:
        raise ValueError("--system needs the chat template, which --raw leaves out; give one of the two")
    settings = sampling_settings(args)
    config = engine_config(args, log_level="warning")
    configure_logging(config.log_level)
    prompt = read_prompt(args.prompt)
    with BackgroundLoop() as loop:
        statistics = loop.run(_complete(config, prompt, args.system, settings, raw=args.raw))
    sys.stdout.write("\n")
    if args.stats:
        sys.stderr.write(f"{statistics}\n")
    return 0


def read_prompt(argument: str | None) -> str:
    """The argument, or all of stdin when it is "-" or missing."""
    if argument is not None and argument != "-":
        return argument
    if argument is None and sys.stdin.isatty():
        raise ValueError('no prompt; give one after the model, as in: pelton run MODEL "Hello", or pipe one in')
    prompt = sys.stdin.read().strip()
    if not prompt:
        raise ValueError("the prompt on stdin is empty")
    return prompt


async def _complete(
    config: EngineConfig, prompt: str, system: str | None, settings: SamplingSettings, *, raw: bool
) -> Statistics:
    model = await LocalModel.start(config)
    try:
        watch = StopWatch(_write)
        if raw or not model.has_chat_template:
            if system is not None:
                raise ValueError("--system needs a chat template, and this model has none; leave it out")
            counts = await model.complete(prompt, settings, watch.on_text)
        else:
            messages = [{"role": "user", "content": prompt}]
            if system is not None:
                messages.insert(0, {"role": "system", "content": system})
            counts = await model.answer(messages, settings, watch.on_text)
        return watch.statistics(counts)
    finally:
        await model.close()


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
