"""Bodies of embeddings, scores and rankings. Unknown fields are accepted and ignored; null means the default."""

from typing import Annotated, Literal

import msgspec

from pelton.http.openai.requests import Integer


class PoolingBody(msgspec.Struct, kw_only=True):
    """Fields that all of them share, with vLLM's names and meanings."""

    model: str | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: Integer | None = None
    truncation_side: Literal["left", "right"] | None = None
    priority: Integer | None = None
    cache_salt: str | None = None
    request_id: str | None = None


class EmbeddingBody(PoolingBody, kw_only=True):
    """`input` is a text, token ids, or a list of either."""

    input: str | list[str | Integer | list[Integer]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Integer | None = None
    user: str | None = None


class ScoreBody(PoolingBody, kw_only=True):
    """Pairs of one text with one, of one with each of a list, or of two lists entry by entry."""

    text_1: str | list[str]
    text_2: str | list[str]


class Document(msgspec.Struct, kw_only=True):
    text: str


class RerankBody(PoolingBody, kw_only=True):
    """`top_n` is how many results to give; all of them with 0, the default."""

    query: str
    documents: list[str | Document]
    top_n: Annotated[Integer, msgspec.Meta(extra_json_schema={"minimum": 0})] | None = None
    return_documents: bool | None = None
