"""Weights kept as GGUF stores them: the values are those of the gguf package, and nothing is lost or added."""

import gguf
import numpy as np
import pytest
import torch

from formats.gguf_blocks import BLOCK_TYPES, stored
from pelton.formats.dense import Dense
from pelton.formats.gguf import GGUFTensor
from pelton.formats.grouped import GroupedAffine
from pelton.formats.weight import multiply, pack
from pelton.kernels.cpu import extension

pytestmark = pytest.mark.skipif(extension is None, reason="needs the CPU kernels")
SHAPES = [(1, 32), (16, 64), (17, 96), (40, 32), (130, 576)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("type_name", BLOCK_TYPES)
def test_dequantize_equals_the_gguf_package(type_name, shape):
    tensor, expected = stored(type_name, *shape)
    weight = GroupedAffine.from_gguf([tensor], torch.bfloat16)
    assert weight.shape == shape
    assert weight.dequantize().dtype is torch.float32
    assert torch.equal(weight.dequantize(), expected)


@pytest.mark.parametrize("type_name", BLOCK_TYPES)
def test_every_bit_pattern_equals_the_gguf_package(type_name):
    """Scales of any finite value, denormal and huge ones too."""
    type_id = gguf.GGMLQuantizationType[type_name]
    blocks = np.random.default_rng(1).integers(0, 256, size=(5000, gguf.GGML_QUANT_SIZES[type_id][1]), dtype=np.uint8)
    blocks = blocks[np.isfinite(blocks[:, :4].view(np.float16)).all(axis=1)]
    tensor = GGUFTensor(torch.from_numpy(blocks.reshape(-1).copy()), type_name, (len(blocks), 32))
    expected = torch.from_numpy(gguf.quants.dequantize(blocks, type_id).copy())
    weight = GroupedAffine.from_gguf([tensor], torch.float32)
    assert torch.equal(weight.dequantize(), expected)
    assert torch.equal(weight.dequantize(), tensor.dequantize(torch.float32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("type_name", BLOCK_TYPES)
def test_rows_look_up_like_an_embedding(type_name, dtype):
    tensor, expected = stored(type_name, 77, 64)
    ids = torch.tensor([0, 76, 3, 3, 16, 15, *range(50)])
    weight = GroupedAffine.from_gguf([tensor], dtype)
    assert torch.equal(weight.rows(ids), expected[ids].to(dtype))
    assert weight.rows(ids[:0]).shape == (0, 64)


@pytest.mark.parametrize("bad", [-1, 77])
def test_a_row_outside_the_weight_is_refused(bad):
    weight = GroupedAffine.from_gguf([stored("Q4_1", 77, 64)[0]], torch.float32)
    with pytest.raises(AssertionError, match="77"):
        weight.rows(torch.tensor([0, bad]))


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("type_name", BLOCK_TYPES)
@pytest.mark.parametrize("sizes", [(16, 32, 48), (5, 30, 1, 14), (17, 17), (40, 10), (12,)])
def test_parts_are_packed_one_after_the_other(sizes, type_name, gated):
    parts = [stored(type_name, size, 96, seed) for seed, size in enumerate(sizes)]
    weight = pack([tensor for tensor, _ in parts], torch.bfloat16, gated=gated)
    assert isinstance(weight, GroupedAffine)
    assert torch.equal(weight.dequantize(), torch.cat([values for _, values in parts]))


def test_parts_of_different_types_become_dense():
    (four, four_values), (eight, eight_values) = stored("Q4_1", 20, 64), stored("Q8_0", 12, 64)
    plain = torch.ones(3, 64)
    for parts, values in (
        ([four, eight], [four_values, eight_values]),
        ([four, plain], [four_values, plain]),
        ([plain], [plain]),
    ):
        weight = pack(parts, torch.bfloat16)
        assert isinstance(weight, Dense)
        assert torch.equal(weight.dequantize(), torch.cat(values).bfloat16())


@pytest.mark.parametrize("type_name", BLOCK_TYPES)
def test_the_packed_weight_is_as_large_as_the_file_and_aligned(type_name):
    tensor, _ = stored(type_name, 160, 576)
    weight = GroupedAffine.from_gguf([tensor], torch.bfloat16)
    assert weight.nbytes == tensor.raw.nbytes
    assert weight.data.data_ptr() % 64 == 0


def test_the_weight_outlives_its_source():
    tensor, expected = stored("Q4_1", 32, 64)
    weight = GroupedAffine.from_gguf([tensor], torch.float32)
    tensor.raw.zero_()
    assert torch.equal(weight.dequantize(), expected)


def test_only_matrices_of_whole_groups_in_known_types_are_held():
    assert GroupedAffine.can_hold("Q4_1", (5, 64))
    assert not GroupedAffine.can_hold("Q4_1", (64,))
    assert not GroupedAffine.can_hold("Q8_0", (5, 48))
    assert not GroupedAffine.can_hold("Q6_K", (5, 256))
    assert not GroupedAffine.can_hold("BF16", (5, 64))


@pytest.mark.parametrize("type_name", BLOCK_TYPES)
def test_a_product_takes_the_kernel_of_the_weight(type_name):
    """The input is exact in int8, so that both formats multiply the same numbers."""
    tensor, values = stored(type_name, 48, 64)
    x = torch.randint(-127, 128, (5, 64), generator=torch.Generator().manual_seed(0)).float()
    x[:, ::32] = 127
    for weight in (pack([tensor], torch.float32), pack([values], torch.float32)):
        torch.testing.assert_close(multiply(x, weight, None, torch.empty(5, 48)), x @ values.T, rtol=1e-5, atol=1e-2)
