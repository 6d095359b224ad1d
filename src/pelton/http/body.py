"""Request bodies: size, type and nesting are checked before JSON becomes a typed struct."""

import functools
import re
import typing
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from pelton.errors import RequestError

MAX_BODY_BYTES = 32 * 2**20
MAX_NESTING = 100

IGNORED = "pelton.ignored"
"""The scope's entry with the names of the body's fields that no route reads, where there are any."""

_MAX_IGNORED = 16  # fields that are named, and how many characters of each
_MAX_IGNORED_NAME = 64

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")
_PATH = re.compile(r" - at `(?:key in )?\$\.?(.*)`$")
_MISSING = re.compile(r"missing required field `(\w+)`")

T = TypeVar("T")


async def read_json(request: Request, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode the body; RequestError 400 or 413 says what is wrong with it, and names the field."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise RequestError(f"Content-Type must be application/json, got {media_type!r}")
    body = await _read_body(request)
    check_nesting(body)
    try:
        value = decoder.decode(body)
        ignored = _ignored_fields(body, decoder.type)
    except msgspec.ValidationError as error:
        raise _invalid_field(str(error)) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(f"The body is not valid JSON: {error}") from None
    if ignored:
        request.scope[IGNORED] = ignored
    return value


async def _read_body(request: Request) -> bytes:
    chunks: list[bytes] = []
    num_bytes = 0
    async for chunk in request.stream():
        num_bytes += len(chunk)
        if num_bytes > MAX_BODY_BYTES:
            raise RequestError(
                f"The body is larger than {MAX_BODY_BYTES} bytes", status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE
            )
        chunks.append(chunk)
    return b"".join(chunks)


def check_nesting(body: bytes) -> None:
    """Refuse JSON nested more than MAX_NESTING deep, whichever field it is in."""
    if body.count(b"[") + body.count(b"{") <= MAX_NESTING:
        return
    depth = 0
    for bracket in _BRACKET.findall(_STRING.sub(b"", body)):
        depth += 1 if bracket in b"[{" else -1
        if depth > MAX_NESTING:
            raise RequestError(f"The body is nested more than {MAX_NESTING} levels deep")


def _ignored_fields(body: bytes | msgspec.Raw, kind: Any) -> list[str]:  # noqa: ANN401 (any type that JSON decodes to)
    """Fields that the structs of `kind` do not have, the first few of them, as they may stand in a header."""
    known = _struct_fields(kind)
    if not known:
        return []
    ignored: list[str] = []
    for name, value in msgspec.json.decode(body, type=dict[str, msgspec.Raw]).items():
        if name not in known:
            ignored.append(re.sub(r"[^\w.-]", "?", name[:_MAX_IGNORED_NAME], flags=re.ASCII) or "?")
        elif _struct_fields(known[name]) and bytes(value)[:1] == b"{":
            ignored += [f"{name}.{inner}" for inner in _ignored_fields(value, known[name])]
        if len(ignored) >= _MAX_IGNORED:
            break
    return ignored[:_MAX_IGNORED]


@functools.cache
def _struct_fields(kind: Any) -> dict[str, Any]:  # noqa: ANN401
    """The type of each field of a struct, or of the struct in a union with null; empty for all else."""
    for option in (kind, *typing.get_args(kind)):
        if isinstance(option, type) and issubclass(option, msgspec.Struct):
            return {field.encode_name: field.type for field in msgspec.structs.fields(option)}
    return {}


def _invalid_field(message: str) -> RequestError:
    """msgspec's "Expected `float`, got `str` - at `$.temperature`" as an error of the field "temperature"."""
    missing = _MISSING.search(message)
    path = _PATH.search(message)
    if path is None:
        return RequestError(message, param=missing[1] if missing else None)
    param = f"{path[1]}.{missing[1]}" if missing else path[1]
    return RequestError(f"{param}: {message[: path.start()]}", param=param)
