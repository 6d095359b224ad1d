"""An event loop in a thread of its own, for programs that wait for the keyboard in the main thread."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

T = TypeVar("T")

_CLEANUP_SECONDS = 5.0


class BackgroundLoop:
    """Runs coroutines while the caller waits. Leaving the context ends the loop.

    The loop turns also while the main thread sits in `input()`, so that the engine's messages are read.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="event loop", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for `work`. Ctrl-C cancels it, waits for its cleanup, and raises KeyboardInterrupt."""
        cleaned_up = threading.Event()

        async def supervised() -> T:
            try:
                return await work
            finally:
                cleaned_up.set()

        future = asyncio.run_coroutine_threadsafe(supervised(), self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            cleaned_up.wait(_CLEANUP_SECONDS)
            raise
