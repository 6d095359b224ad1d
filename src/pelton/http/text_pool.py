"""Threads for what may take long with a client's text: tokenizing, and templates that a client sent."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import TypeVar

from pelton.errors import RequestError

NUM_THREADS = 2
MAX_WAITING = 256

T = TypeVar("T")


class TextPool:
    """A few threads of its own and a bounded queue.

    A flood of long texts waits here, and in the end is refused, while the event loop, other threads' work and requests
    with short texts, which need no thread, go on. More threads would not help: tokenizers have their own, and templates
    are Python, of which one runs at a time.
    """

    def __init__(self, *, num_threads: int = NUM_THREADS, max_waiting: int = MAX_WAITING) -> None:
        self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix="text")
        self._free = asyncio.Semaphore(num_threads)
        self._max_waiting = max_waiting
        self.num_waiting = 0

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises. A caller that is cancelled while it waits leaves nothing behind.

        Raises:
            RequestError: 429, too many wait.
        """
        if self.num_waiting >= self._max_waiting:
            raise RequestError(
                "Too many long texts wait to be tokenized; try again later", status=HTTPStatus.TOO_MANY_REQUESTS
            )
        self.num_waiting += 1
        try:
            await self._free.acquire()
        finally:
            self.num_waiting -= 1
        job = asyncio.get_running_loop().run_in_executor(self._executor, work)
        job.add_done_callback(lambda _: self._free.release())
        return await asyncio.shield(job)  # the thread is not free before the work has ended, whoever waits for it
