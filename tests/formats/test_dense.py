"""Dense weights: what goes in comes out, packed or not."""

import pytest
import torch

from instruction_sets import under
from pelton.formats.dense import Dense
from pelton.kernels.cpu import extension

SHAPES = [(1, 1), (16, 32), (17, 33), (40, 31), (5, 100), (48, 64), (33, 1), (1300, 900)]


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@under("portable", "avx2", "avx512")
def test_dequantize_gives_back_the_converted_weight(instruction_set, shape, source, dtype):
    w = random(*shape).to(source)
    weight = Dense.from_tensor(w, dtype)
    assert weight.shape == shape
    assert weight.dtype is dtype
    assert torch.equal(weight.dequantize(), w.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_look_up_like_an_embedding(dtype):
    w = random(77, 45).to(dtype)
    ids = torch.tensor([0, 76, 3, 3, 16, 15, *range(50)])
    weight = Dense.from_tensor(w, dtype)
    assert torch.equal(weight.rows(ids), w[ids])
    assert weight.rows(ids[:0]).shape == (0, 45)


@pytest.mark.skipif(extension is None, reason="torch itself checks the ids of an unpacked weight")
@pytest.mark.parametrize("bad", [-1, 77])
def test_a_row_outside_the_weight_is_refused(bad):
    weight = Dense.from_tensor(random(77, 45), torch.float32)
    with pytest.raises(AssertionError, match="77"):
        weight.rows(torch.tensor([0, bad]))


def test_a_strided_or_transposed_source_is_packed_as_its_values():
    w = random(60, 90)
    for view in (w[5:40, 10:50], w[::3], w.T):
        assert torch.equal(Dense.from_tensor(view, torch.float32).dequantize(), view)


def test_the_weight_outlives_its_source():
    w = random(64, 64)
    kept = w.clone()
    weight = Dense.from_tensor(w, torch.float32)
    if weight.packed:
        w.zero_()
    assert torch.equal(weight.dequantize(), kept)


@pytest.mark.skipif(extension is None, reason="nothing is packed")
def test_packing_wastes_only_the_last_columns_and_inputs():
    assert Dense.from_tensor(random(576, 1536), torch.bfloat16).nbytes == 576 * 1536 * 2
    assert Dense.from_tensor(random(17, 33), torch.bfloat16).nbytes == 32 * 64 * 2
    assert Dense.from_tensor(random(17, 33), torch.float32).nbytes == 32 * 33 * 4


@pytest.mark.skipif(extension is None, reason="nothing is packed")
def test_packed_weights_are_aligned_for_the_kernels():
    for shape in SHAPES:
        assert Dense.from_tensor(random(*shape), torch.float32).data.data_ptr() % 64 == 0


def test_an_unpacked_weight_is_the_same_weight():
    w = random(20, 30)
    weight = Dense(w, (20, 30), torch.float32, packed=False)
    assert torch.equal(weight.dequantize(), w)
    assert torch.equal(weight.rows(torch.tensor([4, 19])), w[[4, 19]])
    assert weight.nbytes == 20 * 30 * 4
