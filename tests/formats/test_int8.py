"""Weights quantized to int8: each row by its largest magnitude, from whatever a checkpoint stores."""

import numpy as np
import pytest
import torch

from formats.gguf_blocks import BLOCK_TYPES, stored
from formats.rotation import NORM, rotated, unrotated
from pelton.formats.gguf import GGUFTensor
from pelton.formats.int8 import Int8
from pelton.formats.weight import multiply, multiply_gated, pack
from pelton.kernels.cpu import extension

pytestmark = pytest.mark.skipif(extension is None, reason="needs the CPU kernels")
SHAPES = [(1, 1), (16, 64), (17, 33), (32, 100), (40, 31), (130, 576), (33, 1)]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rounded(w: torch.Tensor) -> torch.Tensor:
    """w [N, K] rotated, as int8 times (largest magnitude of the row / 127), and rotated back, in float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        values = rotated(w.float().numpy())
    largest = np.abs(values).max(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        codes = np.where(largest > 0, np.rint(values * (np.float32(127) / largest)), 0)
    scale = largest * (NORM / np.float32(127))
    return torch.from_numpy(unrotated(codes.astype(np.float32) * scale)[:, : w.shape[1]].copy())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.float16])
def test_rounds_each_rotated_row_to_multiples_of_its_largest_magnitude(shape, source):
    w = random(*shape).to(source)
    weight = Int8.quantize([w], torch.bfloat16)
    assert weight.shape == shape
    assert torch.equal(weight.dequantize(), rounded(w))


@pytest.mark.parametrize("type_name", BLOCK_TYPES)
@pytest.mark.parametrize("num_outputs", [5, 16, 70])
def test_gguf_tensors_are_quantized_from_their_values(type_name, num_outputs):
    tensor, values = stored(type_name, num_outputs, 96)
    assert torch.equal(Int8.quantize([tensor], torch.bfloat16).dequantize(), rounded(values))


@pytest.mark.parametrize("type_name", ["F32", "F16", "BF16"])
def test_gguf_tensors_of_plain_types_too(type_name):
    w = random(20, 48).to({"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[type_name])
    tensor = GGUFTensor(w.view(torch.uint8).reshape(-1), type_name, (20, 48))
    assert torch.equal(Int8.quantize([tensor], torch.bfloat16).dequantize(), rounded(w))


def test_rows_of_zeros_and_of_tiny_values_stay_finite():
    w = random(20, 40)
    w[3], w[4], w[5, 7] = 0, 1e-42, 1e37
    values = Int8.quantize([w], torch.float32).dequantize()
    assert bool(values.isfinite().all())
    assert bool((values[3:5] == 0).all())
    assert values[5, 7] == pytest.approx(1e37, rel=1e-2)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("at", [(0, 0), (19, 39), (16, 20)])
def test_a_weight_that_is_not_finite_is_refused(bad, at):
    w = random(20, 40)
    w[at] = bad
    with pytest.raises(ValueError, match="NaN or infinite"):
        Int8.quantize([w], torch.float32)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("sizes", [(16, 32, 48), (5, 30, 1, 14), (17, 17), (40, 10), (12,)])
def test_parts_are_packed_one_after_the_other(sizes, gated):
    parts = [random(size, 96, seed=seed) for seed, size in enumerate(sizes)]
    weight = Int8.quantize(parts, torch.bfloat16, gated=gated)
    assert torch.equal(weight.dequantize(), rounded(torch.cat(parts)))


def test_parts_may_be_stored_differently():
    four, four_values = stored("Q4_1", 20, 64)
    eight, eight_values = stored("Q8_0", 12, 64)
    plain = random(3, 64).bfloat16()
    weight = Int8.quantize([four, eight, plain], torch.bfloat16)
    assert torch.equal(weight.dequantize(), rounded(torch.cat([four_values, eight_values, plain.float()])))


def test_a_strided_or_transposed_source_is_quantized_as_its_values():
    w = random(60, 90)
    for view in (w[5:40, 10:50], w[::3], w.T):
        assert torch.equal(Int8.quantize([view], torch.float32).dequantize(), rounded(view.contiguous()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_look_up_like_an_embedding(dtype):
    w = random(77, 45)
    ids = torch.tensor([0, 76, 3, 3, 16, 15, *range(50)])
    weight = Int8.quantize([w], dtype)
    assert torch.equal(weight.rows(ids), rounded(w)[ids].to(dtype))
    assert weight.rows(ids[:0]).shape == (0, 45)


@pytest.mark.parametrize("bad", [-1, 77])
def test_a_row_outside_the_weight_is_refused(bad):
    weight = Int8.quantize([random(77, 45)], torch.float32)
    with pytest.raises(AssertionError, match="77"):
        weight.rows(torch.tensor([0, bad]))


def test_the_weight_outlives_its_source_is_aligned_and_wastes_little():
    w = random(64, 576)
    expected = rounded(w)
    weight = Int8.quantize([w], torch.float32)
    w.zero_()
    assert torch.equal(weight.dequantize(), expected)
    assert weight.data.data_ptr() % 64 == 0
    assert weight.nbytes == 64 * (576 + 4)


def test_a_gated_weight_gives_the_gated_product():
    gate, up, x = random(40, 64, seed=1), random(40, 64, seed=2), random(5, 64)
    weight = pack([gate, up], torch.float32, "int8", gated=True)
    assert weight.gated
    expected = torch.nn.functional.silu(x @ gate.T) * (x @ up.T)
    torch.testing.assert_close(multiply_gated(x, weight, None, torch.empty(5, 40)), expected, rtol=0.05, atol=1.0)


def test_a_product_takes_the_kernel_of_the_weight():
    w, x = random(48, 64), random(5, 64, seed=1)
    weight = pack([w], torch.float32, "int8")
    assert isinstance(weight, Int8)
    torch.testing.assert_close(multiply(x, weight, None, torch.empty(5, 48)), x @ w.T, rtol=0.02, atol=0.3)
