"""Sampling parameters on the command line: flags of `run` and `chat`, and what `/set` changes."""

import argparse
import difflib
from collections.abc import Mapping
from typing import Any

import msgspec

from pelton.types import SamplingParams

# The numbers among the fields of SamplingParams, with their help.
SETTABLE = {
    "max_tokens": "longest answer in tokens; up to the end of the context by default",
    "temperature": "0 takes the most likely token",
    "top_p": "sample from the most likely tokens with this share of the probability",
    "top_k": "sample from this many most likely tokens; 0 for all",
    "min_p": "leave out tokens below this share of the most likely one's probability",
    "presence_penalty": "lower the tokens that were generated",
    "frequency_penalty": "lower tokens as often as they were generated",
    "repetition_penalty": "divide the scores of tokens that occurred; 1 is off",
    "min_tokens": "shortest answer in tokens",
    "seed": "makes the answer repeatable; none draws a fresh one",
}
# --seed is the engine's flag already, and the rest is rare enough for /set alone.
FLAGS = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty")

# What was set, by the fields of SamplingParams: the rest is the model's, or the server's, to choose.
SamplingSettings = Mapping[str, Any]

DEFAULTS: SamplingSettings = {"max_tokens": None, "temperature": 0.7}  # where the model recommends nothing

_TYPES = {info.name: info.type for info in msgspec.structs.fields(SamplingParams)}


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """One flag for each of the common sampling parameters."""
    group = parser.add_argument_group("sampling")
    for name in FLAGS:
        default = DEFAULTS.get(name)
        note = "" if default is None else f" (default: the model's, or {default})"
        flag = "--" + name.replace("_", "-")
        group.add_argument(flag, dest=f"sampling_{name}", metavar="N", help=SETTABLE[name] + note)


def sampling_settings(args: argparse.Namespace) -> SamplingSettings:
    """The flags that were given."""
    settings: SamplingSettings = {}
    for name in FLAGS:
        text = getattr(args, f"sampling_{name}")
        if text is not None:
            settings = with_setting(settings, name, text)
    return settings


def with_setting(settings: SamplingSettings, name: str, text: str) -> SamplingSettings:
    """`settings` with one number changed. "none" means none.

    Raises:
        ValueError: no such parameter, no number, or out of its range.
    """
    name = name.replace("-", "_")
    if name not in SETTABLE:
        close = difflib.get_close_matches(name, SETTABLE, n=1)
        raise ValueError(f"no parameter {name!r}; {f'did you mean {close[0]}?' if close else ', '.join(SETTABLE)}")
    try:
        value = msgspec.convert("null" if text == "none" else text, _TYPES[name], strict=False)
    except msgspec.ValidationError:
        raise ValueError(f"{name} must be a number, got {text!r}") from None
    changed: SamplingSettings = {**settings, name: value}
    checked: SamplingSettings = {"max_tokens": None, **changed}
    SamplingParams(**checked)  # raises what is out of range
    return changed
