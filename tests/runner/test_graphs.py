"""Recorded decode steps: the same logits as without, and none where something runs outside of the kernels."""

from collections.abc import Callable

import pytest
import torch

from pelton.kernels.cpu import extension
from pelton.layers.context import Batch
from pelton.layers.scratch import Scratch
from pelton.ops.norm import rms_norm
from pelton.runner.graphs import StepGraphs

pytestmark = pytest.mark.skipif(extension is None, reason="needs the CPU kernels")
CPU = torch.device("cpu")
SIZE = 32


class Steps:
    """Batches of any shape in one place, a "model" that normalizes a row for each token, and a count of its passes."""

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
        self.scratch = Scratch(CPU)
        self.table = torch.randn(50, SIZE, generator=torch.Generator().manual_seed(0))
        self.weight = torch.ones(SIZE)
        self.token_ids = torch.zeros(64, dtype=torch.int64)
        self.num_passes = 0
        self.change = change
        self.graphs = StepGraphs(self.forward, self.scratch)

    def forward(self, batch: Batch) -> torch.Tensor:
        self.num_passes += 1
        self.scratch.reset()
        out = self.scratch.empty(len(batch.token_ids), SIZE, torch.float32)
        rms_norm(self.table, self.weight, 1e-5, rows=batch.token_ids, out=out)
        return out if self.change is None else self.change(out)

    def run(self, token_ids: list[int], memory: object = None, num_rows: int = 1) -> torch.Tensor:
        ids = self.token_ids[: len(token_ids)]
        ids.copy_(torch.tensor(token_ids))
        empty, lens = torch.empty(0), torch.empty(num_rows)
        return self.graphs.run(Batch(ids, empty, empty, empty, lens, empty, empty), memory).clone()

    def expected(self, token_ids: list[int]) -> torch.Tensor:
        return rms_norm(self.table, self.weight, 1e-5, rows=torch.tensor(token_ids))


def test_a_recording_gives_the_logits_of_the_batch_without_passes():
    steps = Steps()
    for step in range(8):
        ids = [step, step + 1, step + 2]
        assert torch.equal(steps.run(ids), steps.expected(ids))
    assert steps.num_passes == 3  # plain, recorded, compared


def test_each_size_has_its_own_recording():
    steps = Steps()
    for step in range(6):
        for ids in ([step], [step, 7], [3, step]):
            assert torch.equal(steps.run(ids), steps.expected(ids))
    assert steps.num_passes == 2 + 2 + 1


def test_steps_of_as_many_tokens_in_other_rows_have_their_own_recording():
    steps = Steps()
    for step in range(6):
        for num_rows in (3, 2):
            ids = [step, step + 1, step + 2]
            assert torch.equal(steps.run(ids, num_rows=num_rows), steps.expected(ids))
    assert steps.num_passes == 2 + 2 + 1


def test_the_recordings_used_last_are_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pelton.runner.graphs._MAX_RECORDED", 2)
    steps = Steps()
    for ids in ([1], [1, 2], [1], [1, 2], [1], [1, 2, 3], [1, 2, 3]):  # the third shape takes the place of the second
        steps.run(ids)
    before = steps.num_passes
    for ids in ([1], [1, 2, 3]):
        assert torch.equal(steps.run(ids), steps.expected(ids))
    assert steps.num_passes == before
    steps.run([1, 2])
    assert steps.num_passes == before + 1


def test_a_recording_is_not_run_when_the_memory_has_changed():
    steps = Steps()
    for step in range(4):
        steps.run([step])
    before = steps.num_passes
    for memory in (1, 2):
        assert torch.equal(steps.run([9], memory), steps.expected([9]))
    steps.scratch.empty(1 << 20, SIZE, torch.float32)  # a larger block takes the place of the one that was recorded
    assert torch.equal(steps.run([10], 2), steps.expected([10]))
    assert steps.num_passes == before + 3


def test_a_model_that_computes_outside_of_the_kernels_is_not_recorded():
    steps = Steps(change=lambda out: out * 2)
    for step in range(6):
        assert torch.equal(steps.run([step, 3]), 2 * steps.expected([step, 3]))
    assert steps.num_passes == 6


def test_logits_that_are_no_numbers_are_no_reason_not_to_record():
    steps = Steps()
    steps.table[5:] = torch.nan
    for step in range(8):
        assert torch.equal(steps.run([step]).isnan(), steps.expected([step]).isnan())
    assert steps.num_passes == 3
