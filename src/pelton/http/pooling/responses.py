"""Answers of embeddings (OpenAI), scores (vLLM) and rankings (Jina, Cohere)."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from pelton.http.openai.responses import Usage
from pelton.http.pooling.requests import Document


class Embedding(msgspec.Struct, kw_only=True):
    """`embedding` is a list of numbers, or with base64 a string of float32 in little-endian order; both encoded."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: msgspec.Raw


class EmbeddingList(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Embedding]
    usage: Usage


class Score(msgspec.Struct, kw_only=True):
    """The cosine of a pair's embeddings, -1 to 1."""

    index: int
    object: Literal["score"] = "score"
    score: float


class ScoreList(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Score]
    usage: Usage


class Ranked(msgspec.Struct, kw_only=True):
    index: int
    document: Document | UnsetType = UNSET
    relevance_score: float


class Ranking(msgspec.Struct, kw_only=True):
    """`results` are ordered by relevance, the highest first."""

    id: str
    model: str
    usage: Usage
    results: list[Ranked]
