"""The fields that constrain an output: response_format, structured_outputs, and the older guided_* of vLLM.

White space between the parts of JSON is fixed, so options for it are refused. The backend that a client names is not
ours and has no effect on what is accepted.
"""

from collections.abc import Iterator, Mapping
from typing import Any, cast

import msgspec

from pelton.errors import RequestError
from pelton.http.openai.requests import GenerationBody
from pelton.http.service import Service
from pelton.structured.messages import Constraint, ConstraintKind
from pelton.types import JsonObject, SamplingParams

_RESPONSE_FORMAT, _STRUCTURED_OUTPUTS = "response_format", "structured_outputs"
_KINDS: dict[str, ConstraintKind] = {
    name: name for name in ("json", "json_object", "regex", "choice", "grammar", "structural_tag")
}
_WITHOUT_EFFECT = ("disable_fallback", "disable_any_whitespace", "backend", "_backend", "_backend_was_auto")


async def constrained(service: Service, body: GenerationBody, params: SamplingParams) -> SamplingParams:
    """The parameters with the grammar that the body asks for, if any.

    Raises:
        RequestError: names the field; or too many grammars wait to be compiled.
    """
    constraint = constraint_of(body)
    if constraint is None:
        return params
    return msgspec.structs.replace(params, grammar=await service.grammars.compile(constraint))


def constraint_of(body: GenerationBody) -> Constraint | None:
    """What the body asks for, uncompiled. RequestError if it is not well-formed, or there is more than one."""
    found = [*_of_response_format(body.response_format), *_of_structured_outputs(body.structured_outputs)]
    found += _of_guided(body)
    if len(found) > 1:
        fields = ", ".join(constraint.param for constraint in found)
        raise RequestError(f"An output can have one constraint only, got {fields}", param=found[1].param)
    return found[0] if found else None


def _of_response_format(response_format: JsonObject | None) -> Iterator[Constraint]:
    if response_format is None:
        return
    match response_format.get("type"):
        case "text":
            return
        case "json_object":
            _refuse_misplaced_schema(response_format)
            yield Constraint("json_object", None, _RESPONSE_FORMAT)
        case "json_schema":
            yield Constraint("json", _response_schema(response_format), f"{_RESPONSE_FORMAT}.json_schema.schema")
        case "structural_tag":
            yield Constraint("structural_tag", response_format, _RESPONSE_FORMAT)
        case _:
            raise RequestError(
                "response_format.type must be text, json_object, json_schema or structural_tag",
                param="response_format.type",
            )


def _response_schema(response_format: JsonObject) -> object:
    given: object = response_format.get("json_schema")
    if given is None:
        _refuse_misplaced_schema(response_format)
        raise RequestError("response_format.json_schema is missing", param="response_format.json_schema")
    if not isinstance(given, dict):
        raise RequestError("response_format.json_schema must be an object", param="response_format.json_schema")
    schema = cast("JsonObject", given).get("schema")
    if not isinstance(schema, dict):
        raise RequestError(
            'response_format.json_schema.schema must be a JSON schema: {"type": "json_schema", '
            '"json_schema": {"name": ..., "schema": {...}}}',
            param="response_format.json_schema.schema",
        )
    return cast("JsonObject", schema)


def _refuse_misplaced_schema(response_format: JsonObject) -> None:
    if response_format.get("schema") is not None:
        raise RequestError(
            "response_format.schema is not read: send type json_schema and the schema as json_schema.schema",
            param="response_format.schema",
        )


def _of_structured_outputs(options: JsonObject | None) -> Iterator[Constraint]:
    for name, value in (options or {}).items():
        field = f"{_STRUCTURED_OUTPUTS}.{name}"
        if value is None or name in _WITHOUT_EFFECT:
            continue
        if name not in _KINDS:
            raise RequestError(f"{field} is not supported; there are {', '.join(_KINDS)}", param=field)
        yield from _of_option(_KINDS[name], value, field)


def _of_option(kind: ConstraintKind, value: object, field: str) -> Iterator[Constraint]:
    if kind == "json_object":
        if not isinstance(value, bool):
            raise RequestError(f"{field} must be a boolean", param=field)
        if value:
            yield Constraint(kind, None, field)
    elif kind == "structural_tag":
        yield Constraint(kind, _structural_tag(value, field), field)
    else:
        yield Constraint(kind, value, field)


def _structural_tag(value: object, field: str) -> Mapping[str, Any]:
    """An object, or a string that holds one as JSON."""
    if isinstance(value, str):
        try:
            return msgspec.json.decode(value, type=dict[str, Any])
        except (msgspec.MsgspecError, RecursionError) as error:
            raise RequestError(f"{field} is not a JSON object: {error}", param=field) from None
    if not isinstance(value, dict):
        raise RequestError(f"{field} must be an object", param=field)
    return cast("JsonObject", value)


def _of_guided(body: GenerationBody) -> Iterator[Constraint]:
    if body.guided_whitespace_pattern is not None:
        field = "guided_whitespace_pattern"
        raise RequestError(f"{field} is not supported: JSON is written compactly", param=field)
    if body.guided_json is not None:
        yield Constraint("json", body.guided_json, "guided_json")
    if body.guided_json_object:
        yield Constraint("json_object", None, "guided_json_object")
    if body.guided_regex is not None:
        yield Constraint("regex", body.guided_regex, "guided_regex")
    if body.guided_choice is not None:
        yield Constraint("choice", body.guided_choice, "guided_choice")
    if body.guided_grammar is not None:
        yield Constraint("grammar", body.guided_grammar, "guided_grammar")
    if body.structural_tag is not None:
        yield Constraint("structural_tag", _structural_tag(body.structural_tag, "structural_tag"), "structural_tag")
