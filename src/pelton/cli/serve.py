"""`pelton serve`: the OpenAI-compatible server."""

import argparse
import importlib

from pelton.cli.flags import Parser, add_engine_arguments, engine_config
from pelton.cli.logs import configure_logging


def add_arguments(parser: Parser) -> None:
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    config = engine_config(args)
    configure_logging(config.log_level)
    # Imported only now: help and a bad flag answer without waiting for the server's libraries.
    return importlib.import_module("pelton.cli.serving").serve(config)
