"""A server's life: start the engine, serve until told to stop."""

import gc
import shlex
import socket
import sys
import time

import msgspec
import uvloop

from pelton.cli.hardware import has_cpu_kernels
from pelton.cli.sizes import show_bytes
from pelton.config import EngineConfig
from pelton.engine.client import AsyncEngine
from pelton.engine.host import EngineHost
from pelton.engine.protocol import EngineClient
from pelton.http.server import run_server
from pelton.http.service import root_model_name


def serve(config: EngineConfig, listener: socket.socket, host: EngineHost, started: float) -> int:
    """Returns the exit code.

    Args:
        listener: connections made before the model is loaded wait there instead of failing.
        started: clock time (time.monotonic) that the start counts from.

    Raises:
        ValueError: the model or a setting cannot work.
    """
    return uvloop.run(_serve(config, listener, host, started))


async def _serve(config: EngineConfig, listener: socket.socket, host: EngineHost, started: float) -> int:
    engine = await AsyncEngine.start(config, host)
    gc.freeze()  # what lives now lives on: a collection need not go through it
    gc.enable()
    try:
        sys.stdout.write(banner(engine, time.monotonic() - started))
        sys.stdout.flush()
        return await run_server(engine, engine.config, listener)
    finally:
        await engine.stop()


def banner(engine: EngineClient, seconds: float) -> str:
    """Where the server is, what it runs, and how to try it."""
    config, stats = engine.config, engine.stats
    kernels = "C++" if has_cpu_kernels() else "reference operations, many times slower: see pelton doctor"
    num_tokens = stats.num_pages * stats.page_size
    return (
        f"Pelton serves {config.served_model_name or root_model_name(config)} at {address(config)}\n"
        f"  model    {engine.info.architecture}, {engine.info.num_parameters / 1e6:.0f} M weights, "
        f"context of {config.max_model_len} tokens\n"
        f"  device   {config.device}, {config.num_threads} threads, {config.dtype}\n"
        f"  kernels  {kernels}\n"
        f"  KV cache {show_bytes(config.kv_cache_memory or 0)} in {config.kv_cache_dtype}: {num_tokens} tokens\n"
        f"  started  in {seconds:.1f} s\n\n"
        f"  {example(config)}\n\n"
    )


def address(config: EngineConfig) -> str:
    """The URL that clients on this machine use, or the Unix socket."""
    if config.uds is not None:
        return f"unix:{config.uds}"
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.host, config.host)
    return f"http://[{host}]:{config.port}" if ":" in host else f"http://{host}:{config.port}"


def example(config: EngineConfig) -> str:
    """A curl command that streams a chat completion. The key itself is not shown: terminals are recorded."""
    socket_flag = f"--unix-socket {shlex.quote(config.uds)} " if config.uds is not None else ""
    url = "http://localhost" if config.uds is not None else address(config)
    key = '-H "Authorization: Bearer $API_KEY" ' if config.api_key else ""
    body = {"messages": [{"role": "user", "content": "Why is the sky blue?"}], "stream": True, "max_tokens": 100}
    data = shlex.quote(msgspec.json.encode(body).decode())
    return f"curl -N {socket_flag}{url}/v1/chat/completions {key}-H 'Content-Type: application/json' -d {data}"
