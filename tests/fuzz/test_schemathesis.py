"""Schemathesis over the OpenAPI document: whatever it thinks of, no answer is a 5xx or contradicts the document."""

import pytest
import schemathesis
from hypothesis import HealthCheck, settings, strategies
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from pelton.http.app import ROUTES, create_app

from fakes import FakeEngine

pytestmark = pytest.mark.e2e  # for its time, not for a server

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]

MESSAGES = [{"role": "user", "content": "hi"}]
NEEDED = {name for route in ROUTES for name in route.required}

schema = schemathesis.openapi.from_asgi("/openapi.json", create_app(FakeEngine(script=[72, 73])))


@schema.hook
def flatmap_body(context: schemathesis.HookContext, body: object) -> strategies.SearchStrategy[object]:
    """Mostly few fields and the served model: among many random ones there is always a bad one to be told of first."""
    if not isinstance(body, dict):
        return strategies.just(body)
    kept = strategies.sets(strategies.sampled_from(sorted({*body, "model"})), max_size=4)
    valid = {"messages": MESSAGES} if body.get("messages") else {}
    return kept.map(lambda names: {key: value for key, value in body.items() if key in names | NEEDED} | valid)


@schema.parametrize()
@settings(max_examples=40, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
def test_answers_conform_to_the_document(case: schemathesis.Case):
    case.call_and_validate(checks=CHECKS)
