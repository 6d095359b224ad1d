"""Decode steps recorded once for each shape, and run again without Python between their operations."""

import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

import torch

from pelton.layers.context import Batch
from pelton.layers.scratch import Scratch
from pelton.ops.program import Program

logger = logging.getLogger(__name__)

_MAX_RECORDED = 256  # 50 kB each for a model of 30 layers
_MAX_SEEN = 4096
_Shape = tuple[int, int]  # tokens, rows


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
    """Runs steps in which every row samples; they differ in their numbers of tokens and rows only.

    As a rule a row has one token, and more where a grammar forced some. The first step of a shape runs as any other,
    the second is recorded, further ones run the recording; those used last are kept. A recording holds as long as batch
    and scratch stay in the memory that they had. A model that computes something outside of the recorded kernels gives
    other logits when its first recording runs, and is not recorded again.
    """

    def __init__(self, forward: Pass, scratch: Scratch) -> None:
        self._forward = forward
        self._scratch = scratch
        self._recorded: OrderedDict[_Shape, _Recorded] = OrderedDict()
        self._seen: set[_Shape] = set()
        self._is_recordable: bool | None = None  # None until a recording was compared

    def run(self, batch: Batch, memory: object) -> torch.Tensor:
        """The logits of the batch. `memory` is the object that the batch's tensors lie in."""
        if self._is_recordable is False:
            return self._forward(batch)
        shape = len(batch.token_ids), len(batch.context_lens)
        recorded = self._recorded.get(shape)
        if recorded is not None and recorded.batch_memory is memory and recorded.scratch_block is self._scratch.block:
            self._recorded.move_to_end(shape)
            return self._run(recorded) if self._is_recordable else self._compare(recorded, batch)
        if shape in self._seen:
            return self._record(shape, batch, memory)
        if len(self._seen) < _MAX_SEEN:
            self._seen.add(shape)
        return self._forward(batch)

    def _run(self, recorded: _Recorded) -> torch.Tensor:
        recorded.program.run()
        return recorded.logits

    def _record(self, shape: _Shape, batch: Batch, memory: object) -> torch.Tensor:
        block = self._scratch.block
        program, logits = Program.record(lambda: self._forward(batch))
        if self._scratch.block is block:
            self._recorded[shape] = _Recorded(program, logits, block, memory)
            if len(self._recorded) > _MAX_RECORDED:
                self._recorded.popitem(last=False)
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
