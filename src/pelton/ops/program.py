"""Recorded kernel calls: a forward pass on the CPU without Python between its operations."""

from collections.abc import Callable
from typing import Any, Self, TypeVar

import torch

from pelton.kernels.cpu import extension

Result = TypeVar("Result")


class Program:
    """The kernel calls that a function made, with the addresses and shapes that they had.

    `run` makes them again, on what lies at these addresses by then. Whoever records keeps the memory of all inputs,
    intermediate results and outputs, and changes inputs in place. What the function computes in torch is not recorded.
    """

    def __init__(self, calls: Any) -> None:  # noqa: ANN401 (a class of the C++ module)
        self._calls = calls

    @staticmethod
    def is_available(device: torch.device) -> bool:
        return extension is not None and device.type == "cpu"

    @classmethod
    def record(cls, function: Callable[[], Result]) -> tuple[Self, Result]:
        """Call the function, whose work is done once the calls are recorded."""
        assert extension is not None
        calls = extension.Program()
        calls.begin()
        try:
            result = function()
        finally:
            calls.end()
        return cls(calls), result

    def run(self) -> None:
        """Make all calls, in order, without the interpreter lock."""
        assert self._calls.run(), "a token id is not in the vocabulary"
