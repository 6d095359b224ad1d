"""Decode steps recorded once for each number of rows, and run again without Python between their operations."""

import logging
from dataclasses import dataclass
from typing import Protocol

import torch

from pelton.layers.context import Batch
from pelton.layers.scratch import Scratch
from pelton.ops.program import Program

logger = logging.getLogger(__name__)


class Pass(Protocol):
    """A forward pass of a batch, to the logits of its sampled rows [S, V]."""

    def __call__(self, batch: Batch) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class _Recorded:
    program: Program
    logits: torch.Tensor
    scratch_block: torch.Tensor
    batch_memory: object


class StepGraphs:
    """Runs steps in which every row computes and samples one token; they differ in their number of rows only.

    The first step of a size runs as any other, the second is recorded, further ones run the recording. It holds as
    long as batch and scratch stay in the memory that they had. A model that computes something outside of the recorded
    kernels gives other logits when its first recording runs, and is not recorded again.
    """

    def __init__(self, forward: Pass, scratch: Scratch) -> None:
        self._forward = forward
        self._scratch = scratch
        self._recorded: dict[int, _Recorded] = {}
        self._seen: set[int] = set()
        self._is_recordable: bool | None = None  # None until a recording was compared

    def run(self, batch: Batch, memory: object) -> torch.Tensor:
        """The logits of the batch. `memory` is the object that the batch's tensors lie in."""
        if self._is_recordable is False:
            return self._forward(batch)
        size = len(batch.token_ids)
        recorded = self._recorded.get(size)
        if recorded is not None and recorded.batch_memory is memory and recorded.scratch_block is self._scratch.block:
            return self._run(recorded) if self._is_recordable else self._compare(recorded, batch)
        if size in self._seen:
            return self._record(size, batch, memory)
        self._seen.add(size)
        return self._forward(batch)

    def _run(self, recorded: _Recorded) -> torch.Tensor:
        recorded.program.run()
        return recorded.logits

    def _record(self, size: int, batch: Batch, memory: object) -> torch.Tensor:
        block = self._scratch.block
        program, logits = Program.record(lambda: self._forward(batch))
        if self._scratch.block is block:
            self._recorded[size] = _Recorded(program, logits, block, memory)
        return logits

    def _compare(self, recorded: _Recorded, batch: Batch) -> torch.Tensor:
        """Run a step both ways: it may be repeated, since it writes the same keys and values again."""
        expected = self._forward(batch).clone()
        logits = self._run(recorded)
        self._is_recordable = torch.equal(logits.view(torch.int32), expected.view(torch.int32))  # NaNs are equal too
        if not self._is_recordable:
            logger.info("decode steps run without recording: this model computes outside of the kernels")
            self._recorded.clear()
        return expected
