"""Pelton: an LLM inference engine and server. Importing it is cheap: nothing heavy loads before first use."""

import importlib
import typing

if typing.TYPE_CHECKING:
    from pelton.config import EngineConfig
    from pelton.engine.client import AsyncEngine
    from pelton.engine.llm import LLM
    from pelton.types import SamplingParams

__version__ = "0.1.0"
__all__ = ["LLM", "AsyncEngine", "EngineConfig", "SamplingParams"]

_HOMES = {
    "LLM": "pelton.engine.llm",
    "AsyncEngine": "pelton.engine.client",
    "EngineConfig": "pelton.config",
    "SamplingParams": "pelton.types",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'pelton' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
