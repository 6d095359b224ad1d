"""What the routes work with: one value, made by create_app."""

from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry

from pelton.config import EngineConfig
from pelton.engine.protocol import EngineClient
from pelton.http.gate import Lifecycle
from pelton.http.metrics import ServerMetrics
from pelton.http.openai.responses_api.store import ResponseStore
from pelton.http.text_pool import TextPool
from pelton.structured.checker import GrammarChecker

EMBEDDED_MODEL = "SmolLM2-135M-Instruct"


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """`created` is the start time (Unix seconds), `root_model` the base model's name."""

    engine: EngineClient
    metrics: ServerMetrics
    registry: CollectorRegistry
    lifecycle: Lifecycle
    responses: ResponseStore
    text_pool: TextPool
    grammars: GrammarChecker
    model: str
    root_model: str
    created: int

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus output, in tokens."""
        return self.engine.config.max_model_len or self.engine.info.max_position_embeddings


def root_model_name(config: EngineConfig) -> str:
    """A Hugging Face id as it is; of a path, the last part without .gguf: clients see no paths."""
    if config.model is None:
        return EMBEDDED_MODEL
    path = Path(config.model)
    if path.suffix == ".gguf" or path.is_absolute() or path.exists():
        return path.resolve().name.removesuffix(".gguf")
    return config.model
