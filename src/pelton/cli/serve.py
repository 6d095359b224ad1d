"""`pelton serve`: the OpenAI-compatible server."""

import argparse
import gc
import importlib
import time

from pelton.cli.flags import Parser, add_engine_arguments, engine_config
from pelton.cli.logs import configure_logging
from pelton.engine.host import ProcessHost
from pelton.http.listener import bind


def add_arguments(parser: Parser) -> None:
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    started = time.monotonic()
    config = engine_config(args)
    configure_logging(config.log_level)
    listener = bind(config)  # a taken port is told at once
    host = ProcessHost()
    host.launch()  # the engine imports what it needs while we do
    gc.disable()  # until the server is up: modules are not garbage
    # Imported only now: help and a bad flag answer without waiting for the server's libraries.
    return importlib.import_module("pelton.cli.serving").serve(config, listener, host, started)
