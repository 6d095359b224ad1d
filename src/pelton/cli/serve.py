"""`pelton serve`: the OpenAI-compatible server."""

import argparse
import functools
import gc
import importlib
import logging
import os
import signal
import time
from pathlib import Path

from pelton.cli.flags import Parser, add_engine_arguments, engine_config
from pelton.cli.logs import configure_logging
from pelton.config import EngineConfig
from pelton.engine.host import ProcessHost
from pelton.http.listener import bind

logger = logging.getLogger(__name__)


def add_arguments(parser: Parser) -> None:
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    started = time.monotonic()
    config = engine_config(args)
    configure_logging(config.log_level)
    listener = bind(config)  # a taken port is told at once
    host = ProcessHost()
    host.launch()  # the engine imports what it needs while we do
    previous = signal.signal(signal.SIGTERM, functools.partial(_leave, host, config))  # until the server drains
    gc.disable()  # until the server is up: modules are not garbage
    try:
        # Imported only now: help and a bad flag answer without waiting for the server's libraries.
        return importlib.import_module("pelton.cli.serving").serve(config, listener, host, started)
    finally:
        signal.signal(signal.SIGTERM, previous)


def _leave(host: ProcessHost, config: EngineConfig, *_: object) -> None:
    """Told to end before there is a request to drain: nothing is saved, and no thread that downloads is waited for."""
    logger.info("ending before the model is loaded")
    host.stop(at_once=True)
    if config.uds is not None:
        Path(config.uds).unlink(missing_ok=True)
    logging.shutdown()
    os._exit(0)
