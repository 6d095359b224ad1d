"""What routes need of a client's connection beside ASGI: work that ends when it closes, and a short way into it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

DirectWrite = Callable[[bytes], bool]

WRITE = "pelton.write"
"""The scope's entry with a function that sends a piece of a body at once, after the head of the response.

False, and nothing is sent, where `send` has to be awaited instead: the client is slow, or gone. Other servers than ours
have no such entry.
"""

T = TypeVar("T")


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Run `work` until it ends or the client goes, whichever is first.

    The request's body must have been read. `work` is cancelled, and its cleanup awaited, before this returns.

    Raises:
        ClientDisconnect: the client went first.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_client_gone(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _client_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
