"""Tests run the kernels of any instruction set that this machine has, not only those of its best.

A test that takes the fixture `instruction_set` runs once under each; `@under("portable", "avx512")` narrows them to
those for which what it tests has kernels of its own.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pelton.kernels.cpu import extension

# In ascending order, the best of this machine last.
INSTRUCTION_SETS: list[str] = ["reference"] if extension is None else extension.instruction_sets()


@contextmanager
def limited_to(instruction_set: str) -> Iterator[None]:
    """Inside, no kernel uses more than this instruction set."""
    if extension is None:
        yield
        return
    before = extension.limit_instruction_set(instruction_set)
    try:
        yield
    finally:
        extension.limit_instruction_set(before)


def available(*names: str) -> list[str]:
    """Those of `names` that this machine has; without the extension the reference alone."""
    return [name for name in INSTRUCTION_SETS if name in names or extension is None]


def under(*names: str) -> pytest.MarkDecorator:
    """Runs the test once under each of `names` that this machine has."""
    return pytest.mark.parametrize("instruction_set", available(*names), indirect=True)
