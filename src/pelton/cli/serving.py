"""A server's life: bind the port, start the engine, serve until told to stop."""

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
from pelton.engine.protocol import EngineClient
from pelton.http.server import bind, run_server
from pelton.http.service import root_model_name


def serve(config: EngineConfig) -> int:
    """Returns the exit code.

    Raises:
        ValueError: the address, the model or a setting cannot work.
    """
    # Bound before the model loads: a taken port is told at once, and early connections wait instead of failing.
    listener = bind(config)
    return uvloop.run(_serve(config, listener, time.monotonic()))


async def _serve(config: EngineConfig, listener: socket.socket, started: float) -> int:
    engine = await AsyncEngine.start(config)
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
