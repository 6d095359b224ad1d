"""POST /v1/score and /v1/rerank: cosines of embeddings."""

import operator
from array import array
from collections.abc import Sequence

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from pelton.errors import RequestError
from pelton.http.body import read_json
from pelton.http.connection import while_connected
from pelton.http.openai.generation import Generation, refuse_when_full
from pelton.http.openai.models import check_model
from pelton.http.openai.responses import Usage
from pelton.http.pooling.job import pooled, pooled_prompts, pooling_job
from pelton.http.pooling.requests import Document, PoolingBody, RerankBody, ScoreBody
from pelton.http.pooling.responses import Ranked, Ranking, Score, ScoreList
from pelton.http.service import Service

_INLINE_PAIRS = 32  # under a millisecond of products; more go to a thread

_score_decoder = msgspec.json.Decoder(ScoreBody)
_rerank_decoder = msgspec.json.Decoder(RerankBody)
_encode = msgspec.json.Encoder().encode


async def create_score(service: Service, request: Request) -> Response:
    """How close the two texts of each pair are."""
    body = await read_json(request, _score_decoder)
    left = [body.text_1] if isinstance(body.text_1, str) else body.text_1
    right = [body.text_2] if isinstance(body.text_2, str) else body.text_2
    if len(left) not in (1, len(right)):
        raise RequestError(
            f"text_1 must be one text, or as many as text_2: got {len(left)} and {len(right)}", param="text_1"
        )
    job, cosines, usage = await _cosines(service, request, body, {"text_1": left, "text_2": right}, prefix="score-")
    data = [Score(index=index, score=cosine) for index, cosine in enumerate(cosines)]
    answer = ScoreList(id=job.id, created=job.created, model=job.model, data=data, usage=usage)
    return Response(_encode(answer), media_type="application/json")


async def create_ranking(service: Service, request: Request) -> Response:
    """The documents by how close they are to the query."""
    body = await read_json(request, _rerank_decoder)
    top_n = body.top_n or 0
    if top_n < 0:
        raise RequestError(f"top_n must be at least 0, got {top_n}", param="top_n")
    documents = [document if isinstance(document, str) else document.text for document in body.documents]
    fields = {"query": [body.query], "documents": documents}
    job, cosines, usage = await _cosines(service, request, body, fields, prefix="rerank-")
    ranks = sorted(range(len(cosines)), key=lambda index: -cosines[index])[: top_n or None]
    shows = body.return_documents is not False
    results = [
        Ranked(
            index=index,
            document=Document(text=documents[index]) if shows else UNSET,
            relevance_score=cosines[index],
        )
        for index in ranks
    ]
    return Response(
        _encode(Ranking(id=job.id, model=job.model, usage=usage, results=results)), media_type="application/json"
    )


async def _cosines(
    service: Service, request: Request, body: PoolingBody, fields: dict[str, list[str]], *, prefix: str
) -> tuple[Generation, list[float], Usage]:
    """Of each text of the second field with its partner in the first, or with the only one there."""
    check_model(service, body.model)
    refuse_when_full(service)
    left, right = [await pooled_prompts(service, body, texts, name) for name, texts in fields.items()]
    job = pooling_job(service, request, body, [*left, *right], prefix=prefix)
    vectors, usage = await while_connected(request.receive, pooled(service, job, _floats))
    lefts, rights = vectors[: len(left)], vectors[len(left) :]
    if len(rights) <= _INLINE_PAIRS:
        return job, _products(lefts, rights), usage
    return job, await service.text_pool.run(lambda: _products(lefts, rights)), usage


def _floats(vector: bytes) -> "array[float]":
    return array("f", vector)


def _products(lefts: "Sequence[array[float]]", rights: "Sequence[array[float]]") -> list[float]:
    """Of vectors of length 1 these are the cosines, up to rounding."""
    if len(lefts) == 1:
        lefts = [lefts[0]] * len(rights)
    products = [sum(map(operator.mul, left, right)) for left, right in zip(lefts, rights, strict=True)]
    return [max(-1.0, min(1.0, product)) for product in products]
