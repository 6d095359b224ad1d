"""Decode steps recorded once for each number of rows, and run again without Python between their operations."""

import logging
from dataclasses import dataclass
from typing import Protocol

import torch

from pelton.layers.context import Batch
from pelton.layers.scratch import Scratch
from pelton.ops.program import NotRecordableError, Program

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
    long as batch and scratch stay in the memory that they had.
    """

    def __init__(self, forward: Pass, scratch: Scratch) -> None:
        self._forward = forward
        self._scratch = scratch
        self._recorded: dict[int, _Recorded] = {}
        self._seen: set[int] = set()
        self._is_recordable = True

    def run(self, batch: Batch, memory: object) -> torch.Tensor:
        """The logits of the batch. `memory` is the object that the batch's tensors lie in."""
        size = len(batch.token_ids)
        recorded = self._recorded.get(size)
        if recorded is not None and recorded.batch_memory is memory and recorded.scratch_block is self._scratch.block:
            recorded.program.run()
            return recorded.logits
        if size not in self._seen or not self._is_recordable:
            self._seen.add(size)
            return self._forward(batch)
        return self._record(size, batch, memory)

    def _record(self, size: int, batch: Batch, memory: object) -> torch.Tensor:
        block = self._scratch.block
        try:
            program, logits = Program.record(lambda: self._forward(batch))
        except NotRecordableError as error:
            logger.info("decode steps run without recording: %s", error)
            self._is_recordable = False
            return self._forward(batch)  # steps may be repeated: they write the same keys and values again
        if self._scratch.block is block:
            self._recorded[size] = _Recorded(program, logits, block, memory)
        return logits
