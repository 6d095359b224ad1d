"""POST /v1/embeddings."""

import base64
from array import array

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pelton.errors import RequestError
from pelton.http.body import read_json
from pelton.http.connection import while_connected
from pelton.http.openai.generation import refuse_when_full
from pelton.http.openai.models import check_model
from pelton.http.pooling.job import pooled, pooled_prompts, pooling_job
from pelton.http.pooling.requests import EmbeddingBody
from pelton.http.pooling.responses import Embedding, EmbeddingList
from pelton.http.service import Service

_decoder = msgspec.json.Decoder(EmbeddingBody)
_encode = msgspec.json.Encoder().encode


async def create_embedding(service: Service, request: Request) -> Response:
    """A vector of length 1 for every input."""
    body = await read_json(request, _decoder)
    check_model(service, body.model)
    _check_dimensions(service, body.dimensions)
    refuse_when_full(service)
    prompts = await pooled_prompts(service, body, body.input, "input")
    job = pooling_job(service, request, body, prompts, prefix="embd-")
    shown = _base64 if body.encoding_format == "base64" else _numbers
    vectors, usage = await while_connected(request.receive, pooled(service, job, shown))
    answer = EmbeddingList(
        id=job.id,
        created=job.created,
        model=job.model,
        data=[Embedding(index=index, embedding=vector) for index, vector in enumerate(vectors)],
        usage=usage,
    )
    return Response(_encode(answer), media_type="application/json")


def _check_dimensions(service: Service, dimensions: int | None) -> None:
    size = service.engine.info.hidden_size
    if dimensions is not None and dimensions != size:
        raise RequestError(
            f"dimensions: this model's embeddings have {size} dimensions and were not trained to be cut",
            param="dimensions",
        )


# Encoded as they come, so that the event loop is not held up at the end by thousands of them.
def _numbers(vector: bytes) -> msgspec.Raw:
    return msgspec.Raw(_encode(array("f", vector).tolist()))


def _base64(vector: bytes) -> msgspec.Raw:
    return msgspec.Raw(b'"' + base64.b64encode(vector) + b'"')
