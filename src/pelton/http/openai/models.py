"""GET /v1/models, and whether a body's `model` is one of them."""

from http import HTTPStatus

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pelton.errors import RequestError
from pelton.http.openai.responses import ModelCard, ModelList
from pelton.http.service import Service

_encode = msgspec.json.Encoder().encode


async def list_models(service: Service, request: Request) -> Response:
    del request
    return Response(_encode(ModelList(data=[_card(service)])), media_type="application/json")


async def get_model(service: Service, request: Request) -> Response:
    check_model(service, request.path_params["model"])
    return Response(_encode(_card(service)), media_type="application/json")


def check_model(service: Service, model: str | None) -> None:
    """RequestError 404 for a name that is not served. None and "" mean the served model."""
    if model and model != service.model:
        raise RequestError(f"The model `{model}` does not exist.", param="model", status=HTTPStatus.NOT_FOUND)


def _card(service: Service) -> ModelCard:
    return ModelCard(
        id=service.model, created=service.created, root=service.root_model, max_model_len=service.max_model_len
    )
