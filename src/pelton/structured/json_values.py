"""What of JSON values can be written exactly, and how they are shown in messages."""

import math
from collections.abc import Iterator
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

SMALLEST_STEP = 1e-9  # nearer to an exclusive bound no number is written
LARGEST_BOUND = 2**63 - 1024  # the largest float64 that the grammar library takes as the bound of an integer
EXACT_INTEGER = 2**53  # float64 holds every integer up to here
_EXACT_POWER = 22  # and every power of ten up to this one
_LARGE = 2**40
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


def inexact_number(value: object) -> float | None:
    """A number in the value that the grammar library would read as another one."""
    for number in _leaves(value):
        if isinstance(number, int | float) and not is_exact(number):
            return number
    return None


def is_exact(number: float) -> bool:
    """Whether the grammar library reads the number as it is.

    It multiplies or divides the digits, as an integer, by a power of ten in float64: exact for both up to a size.
    """
    if isinstance(number, int):
        return abs(number) <= EXACT_INTEGER
    if not math.isfinite(number):
        return False
    _, digits, exponent = Decimal(repr(number)).as_tuple()
    assert isinstance(exponent, int)
    return abs(exponent) <= _EXACT_POWER and int("".join(map(str, digits))) <= EXACT_INTEGER


def inclusive(bound: float, direction: int) -> float:
    """A bound that is read as it is: the same, or one just inside. `direction` is 1 for a lower bound, -1 for an upper.

    What does not fit into 64 bits becomes what does.
    """
    if direction * bound < -LARGEST_BOUND:
        return -direction * LARGEST_BOUND
    if is_exact(bound):
        return bound
    context = Context(prec=15, rounding=ROUND_CEILING if direction > 0 else ROUND_FLOOR)
    rounded = float(context.create_decimal(repr(bound)))
    if rounded.is_integer():
        return int(rounded)
    return rounded if is_exact(rounded) else direction * SMALLEST_STEP if direction * bound > 0 else 0


def inside(bound: float, direction: int) -> float:
    """An inclusive bound for an exclusive one, SMALLEST_STEP or a few parts in 10^15 away from it."""
    if isinstance(bound, int) and abs(bound) >= _LARGE:
        return inclusive(bound + direction, direction)
    return inclusive(bound + direction * max(SMALLEST_STEP, 16 * math.ulp(bound)), direction)


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
