"""What the engine offers its users (EngineClient), and the messages on the socket to its process."""

from collections.abc import AsyncIterator, Sequence
from typing import Literal, Protocol

from pelton.config import EngineConfig
from pelton.model_config import ModelInfo
from pelton.tokenizer import Tokenizer
from pelton.types import Delta, EngineStats, SamplingParams

Health = Literal["starting", "ok", "stuck", "dead"]


class EngineClient(Protocol):
    """An engine as the server sees it. AsyncEngine is the real one; tests bring scripted ones."""

    @property
    def config(self) -> EngineConfig: ...

    @property
    def info(self) -> ModelInfo: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def stats(self) -> EngineStats: ...

    @property
    def health(self) -> Health: ...

    def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, priority: int = 0, salt: str = ""
    ) -> AsyncIterator[Delta]:
        """Run one choice (params.n == 1). Closing or cancelling the iterator aborts the request and frees its pages.

        Args:
            prompt_ids: token ids, at least one, each below the vocabulary size.
            params: max_tokens=None means up to the end of the context.
            priority: smaller runs first.
            salt: prefix pages are shared only between requests of the same salt.

        Raises:
            RequestError: the prompt is empty, too long or out of vocabulary, or the request failed.
            EngineDeadError: the engine process died under the request.
        """
        ...

    async def abort_all(self) -> None:
        """End every request with finish_reason "abort"."""
        ...
