"""What of JSON values can be written exactly, and how they are shown in messages."""

import math
from collections.abc import Iterator

EXACT_INTEGER = 2**53  # the grammar library counts in float64, which holds every integer up to here
_SHORT_ESCAPES = "\n\r\t\b\f"


def shown(value: object) -> str:
    """For a message: cut to 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "..."


def unwritable_character(value: object) -> str | None:
    """A character of any string in the value that only a numbered escape could write; those are not used."""
    for text in _leaves(value):
        if isinstance(text, str):
            for character in text:
                if (character < " " and character not in _SHORT_ESCAPES) or "\ud800" <= character <= "\udfff":
                    return character
    return None


def unexact_integer(value: object) -> int | None:
    """A number in the value that is no exact float64."""
    for number in _leaves(value):
        if isinstance(number, int) and abs(number) > EXACT_INTEGER:
            return number
    return None


def rounded_inwards(bound: float, *, is_lower: bool) -> float:
    """The bound, or for an integer that is no float64 the next one inside of it."""
    rounded = float(bound)
    if is_lower and rounded < bound:
        return math.nextafter(rounded, math.inf)
    if not is_lower and rounded > bound:
        return math.nextafter(rounded, -math.inf)
    return bound if abs(bound) <= EXACT_INTEGER else rounded


def _leaves(value: object) -> Iterator[object]:
    stack = [value]
    while stack:
        each = stack.pop()
        if isinstance(each, dict):
            stack += [*each.keys(), *each.values()]
        elif isinstance(each, list):
            stack += each
        else:
            yield each
