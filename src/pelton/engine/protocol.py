"""EngineClient: what the engine offers its users."""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from pelton.config import EngineConfig
from pelton.model_config import ModelInfo
from pelton.tokenizer import Tokenizer
from pelton.types import Delta, EngineStats, SamplingParams

Health = Literal["starting", "ok", "stuck", "dead"]
DeltaSink = Callable[[Delta | Exception], None]


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

    def submit(
        self, prompt_ids: Sequence[int], params: SamplingParams, sink: DeltaSink, *, priority: int = 0, salt: str = ""
    ) -> Callable[[], None]:
        """Run one choice (params.n == 1). Returns the function that ends it early and frees its pages.

        Args:
            prompt_ids: token ids, at least one, each below the vocabulary size.
            params: max_tokens=None means up to the end of the context.
            sink: called from the event loop, never within `submit`, with each delta as it comes. The last call brings a
                delta with a finish_reason, or the error that ended the request: RequestError or EngineDeadError. After
                the returned function was called there are no more. It must not raise.
            priority: smaller runs first.
            salt: prefix pages are shared only between requests of the same salt.

        Raises:
            RequestError: the prompt is empty, too long or out of vocabulary.
            EngineDeadError: there is no engine process.
        """
        ...

    async def abort_all(self) -> None:
        """End every request with finish_reason "abort"."""
        ...
