"""Request bodies: size, type and nesting are checked before JSON becomes a typed struct."""

import json
import math
import re
from http import HTTPStatus
from typing import TypeVar, cast

import msgspec
from starlette.requests import Request

from pelton.errors import RequestError

MAX_BODY_BYTES = 32 * 2**20
MAX_NESTING = 100

IGNORED = "pelton.ignored"  # the scope's entry with the names of the body's fields that mean nothing here

_MAX_CHECKED_BYTES = 2**20
_MAX_IGNORED_SHOWN = 16
_NOT_IN_HEADERS = re.compile(r"[^\w.-]", re.ASCII)
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")
_PATH = re.compile(r" - at `(?:key in )?\$\.?(.*)`$")
_MISSING = re.compile(r"missing required field `(\w+)`")

T = TypeVar("T")


async def read_json(request: Request, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode the body; RequestError 400 or 413 says what is wrong with it, and names the field."""
    return decode_json(request, await read_body(request), decoder)


def decode_json(request: Request, body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """As read_json, of a body that is read already. Notes which of its fields mean nothing here."""
    check_nesting(body)
    try:
        decoded = decoder.decode(body)
        request.scope[IGNORED] = _ignored_fields(decoded, body)
        return decoded
    except msgspec.ValidationError as error:
        raise _invalid_field(str(error)) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise _not_finite(body) or RequestError(f"The body is not valid JSON: {error}") from None


async def read_body(request: Request) -> bytes:
    """The body of a JSON request; RequestError 400 for another media type, 413 if it is too large."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise RequestError(f"Content-Type must be application/json, got {media_type!r}")
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


def _not_finite(body: bytes) -> RequestError | None:
    """An error that names the number which made the body invalid: Python writes NaN and Infinity, JSON has neither."""
    if (b"NaN" not in body and b"Infinity" not in body) or len(body) > _MAX_CHECKED_BYTES:
        return None
    try:
        path = _path_to_not_finite(json.loads(body))
    except ValueError:
        return None
    if not path:
        return None
    message = f"{path[:200]}: numbers must be finite; JSON has no NaN and no Infinity"
    return RequestError(message, param=path.partition(".")[0][:64])


def _path_to_not_finite(value: object) -> str | None:
    """Where the first NaN or infinity is: names and positions joined by dots, "" for the value itself."""
    if isinstance(value, float):
        return None if math.isfinite(value) else ""
    if isinstance(value, dict):
        parts = cast("dict[str, object]", value).items()
    elif isinstance(value, list):
        parts = enumerate(cast("list[object]", value))
    else:
        return None
    for name, part in parts:
        path = _path_to_not_finite(part)
        if path is not None:
            return f"{name}.{path}".removesuffix(".")
    return None


def _ignored_fields(decoded: object, body: bytes) -> str:
    """The names of fields that the body's structs do not have, for a header; "" mostly."""
    if len(body) > _MAX_CHECKED_BYTES:
        return ""
    ignored = _unknown_names(decoded, body)
    return ", ".join(_NOT_IN_HEADERS.sub("?", name[:64]) for name in ignored[:_MAX_IGNORED_SHOWN])


def _unknown_names(decoded: object, raw: bytes | msgspec.Raw) -> list[str]:
    known: tuple[str, ...] = getattr(decoded, "__struct_encode_fields__", ())
    names: list[str] = []
    for name, value in _fields_decoder.decode(raw).items() if known else ():
        if name not in known:
            names.append(name)
        else:
            names += [f"{name}.{inner}" for inner in _unknown_names(getattr(decoded, name, None), value)]
    return names


def _invalid_field(message: str) -> RequestError:
    """msgspec's "Expected `float`, got `str` - at `$.temperature`" as an error of the field "temperature"."""
    missing = _MISSING.search(message)
    path = _PATH.search(message)
    if path is None:
        return RequestError(message, param=missing[1] if missing else None)
    param = f"{path[1]}.{missing[1]}" if missing else path[1]
    return RequestError(f"{param}: {message[: path.start()]}", param=param)
