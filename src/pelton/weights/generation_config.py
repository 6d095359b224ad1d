"""The sampling that a model's files recommend: generation_config.json, or general.sampling.* of a GGUF header."""

import json
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pelton.types import SamplingDefaults, SamplingParams

logger = logging.getLogger(__name__)

# Name there: field of SamplingParams.
_FIELDS = {
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")},
    "max_new_tokens": "max_tokens",
}
_GGUF_KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_p": "top_p",
    "general.sampling.top_k": "top_k",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}
_INTEGERS = ("top_k", "max_tokens")


def from_generation_config(config: Mapping[str, Any], path: Path) -> SamplingDefaults:
    """By the fields of SamplingParams. What no request could ask for is left out with a warning that names `path`."""
    return _read(config, _FIELDS, path)


def from_gguf_metadata(metadata: Mapping[str, Any], path: Path) -> SamplingDefaults:
    """As from_generation_config. A GGUF header has 32 bits a number: the decimal that was meant is taken."""
    defaults = _read(metadata, _GGUF_KEYS, path)
    return {name: value if name in _INTEGERS else float(f"{value:.6g}") for name, value in defaults.items()}


def overridden(defaults: SamplingDefaults, text: str) -> SamplingDefaults:
    """`defaults` with those of a JSON object over them, which has generation_config.json's names; null takes one away.

    Raises:
        ValueError: no JSON object, an unknown name or a value that no request could ask for.
    """
    setting = "override_generation_config"
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{setting} is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f'{setting} must be a JSON object such as {{"temperature": 0.6}}, got {text[:50]!r}')
    result = dict(defaults)
    for key, value in values.items():  # pyright: ignore[reportUnknownVariableType]
        if key not in _FIELDS:
            raise ValueError(f"{setting}: unknown field {key!r}; the fields are: {', '.join(_FIELDS)}")
        result.pop(_FIELDS[key], None)
        if value is not None:
            try:
                result[_FIELDS[key]] = _checked(_FIELDS[key], value)
            except ValueError as error:
                raise ValueError(f"{setting}: {key}: {error}") from None
    return result


def _read(values: Mapping[str, Any], names: Mapping[str, str], path: Path) -> SamplingDefaults:
    defaults: dict[str, int | float] = {}
    for key, name in names.items():
        value = values.get(key)
        if value is None:
            continue
        try:
            defaults[name] = _checked(name, value)
        except ValueError as error:
            logger.warning("%s: %s is ignored: %s", path, key, error)
    return defaults


def _checked(name: str, value: Any) -> int | float:  # noqa: ANN401 (any JSON value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number, got {str(value)[:50]!r}")
    is_integer = isinstance(value, int) or value.is_integer()
    if name in _INTEGERS and not is_integer:
        raise ValueError(f"{name} must be an integer, got {value}")
    if name == "max_tokens" and value < 1:
        raise ValueError(f"max_tokens must be at least 1, got {value}")
    if not abs(value) <= sys.float_info.max:
        raise ValueError(f"{name} must be finite")
    number = int(value) if name in _INTEGERS else float(value)
    SamplingParams(**{"max_tokens": None, name: number})  # raises what a request with it would
    return number
