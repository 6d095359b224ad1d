"""What serving costs beside the model: processor time of the HTTP process while many clients stream.

python benchmarks/http_cost.py [--streams 64] [--tokens 256] [-- SERVER FLAGS]
"""

import argparse
import asyncio
import os
import time
from pathlib import Path

import uvloop
from serving import free_port, running_server, wait_until_connectable

from pelton.bench.client import send_request
from pelton.bench.connection import Address, HttpClient
from pelton.bench.workload import Prompt

TEXT = "Tell me a long story about the sea and about number {}."


def processor_seconds(pid: int) -> float:
    """User and system time of one process, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def stream_all(url: str, num_streams: int, num_tokens: int) -> None:
    client = HttpClient(Address.parse(url))
    fields = {"ignore_eos": True}
    requests = [
        send_request(client, "chat", fields, Prompt(TEXT.format(index), num_tokens)) for index in range(num_streams)
    ]
    for outcome in await asyncio.gather(*requests):
        assert outcome.error is None, outcome.error


async def measure(pid: int, url: str, num_streams: int, num_tokens: int) -> tuple[float, float]:
    """(seconds of the HTTP process's processor time, seconds that passed)."""
    await stream_all(url, num_streams, 8)  # so that nothing is done for the first time
    used, begun = processor_seconds(pid), time.perf_counter()
    await stream_all(url, num_streams, num_tokens)
    return processor_seconds(pid) - used, time.perf_counter() - begun


async def run(arguments: argparse.Namespace) -> None:
    port = free_port()
    with running_server(port, arguments.server or ["--quantize", "int8"]) as server:
        await wait_until_connectable(server, port)
        url = f"http://127.0.0.1:{port}"
        used, passed = await measure(server.pid, url, arguments.streams, arguments.tokens)
    num_tokens = arguments.streams * arguments.tokens
    print(f"{arguments.streams} streams, {num_tokens / passed:.0f} tokens/s")
    print(f"HTTP process: {100 * used / passed:.1f} % of a core, {1e6 * used / num_tokens:.0f} us a token")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("server", nargs="*", help="flags of pelton serve, after --")
    uvloop.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
