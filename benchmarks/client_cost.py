"""What a received chunk costs a load generator: Pelton's own HTTP client against httpx, in processor time.

A scripted server in another process streams to 32 connections, one chunk every 10 ms each, so that chunks arrive
one by one as from an engine.

    python benchmarks/client_cost.py
"""

import argparse
import asyncio
import subprocess
import sys
import time

import httpx
import msgspec
import uvloop

from pelton.bench.client import Chunk, send_request
from pelton.bench.connection import Address, HttpClient
from pelton.bench.workload import Prompt

NUM_STREAMS = 32
NUM_CHUNKS = 200
CHUNK_SECONDS = 0.01
EVENT = (
    b'data: {"id":"cmpl-0123456789abcdef","object":"text_completion","created":1700000000,"model":"model",'
    b'"choices":[{"index":0,"text":" word","logprobs":null,"finish_reason":%s}]}\n\n'
)
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":200}}\n\ndata: [DONE]\n\n'


async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    for index in range(NUM_CHUNKS):
        event = EVENT % (b'"length"' if index == NUM_CHUNKS - 1 else b"null")
        writer.write(b"%x\r\n%b\r\n" % (len(event), event))
        await asyncio.sleep(CHUNK_SECONDS)
    writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(USAGE), USAGE))
    await writer.drain()
    writer.close()


async def serve() -> None:
    server = await asyncio.start_server(stream, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def with_pelton(url: str) -> None:
    client = HttpClient(Address.parse(url))
    requests = (send_request(client, "completions", {}, Prompt("a", NUM_CHUNKS)) for _ in range(NUM_STREAMS))
    for outcome in await asyncio.gather(*requests):
        assert outcome.error is None, outcome.error
        assert outcome.num_chunks == NUM_CHUNKS + 1


async def with_httpx(url: str) -> None:
    decoder = msgspec.json.Decoder(Chunk)

    async def one(client: httpx.AsyncClient) -> None:
        times: list[float] = []
        async with client.stream("POST", f"{url}/v1/completions", json={"prompt": "a"}) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    decoder.decode(line[6:])
                    times.append(time.perf_counter())
        assert len(times) == NUM_CHUNKS + 1

    limits = httpx.Limits(max_connections=NUM_STREAMS)
    async with httpx.AsyncClient(limits=limits, timeout=60) as client:
        await asyncio.gather(*(one(client) for _ in range(NUM_STREAMS)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    if parser.parse_args().serve:
        asyncio.run(serve())
        return
    with subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        try:
            for name, client in (("httpx", with_httpx), ("pelton", with_pelton)):
                begun = time.process_time()
                uvloop.run(client(url))
                microseconds = 1e6 * (time.process_time() - begun) / (NUM_STREAMS * NUM_CHUNKS)
                print(f"{name:7} {microseconds:6.1f} us per chunk")
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
