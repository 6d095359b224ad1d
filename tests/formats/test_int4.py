"""Weights quantized to 4 bits with a minimum when they are loaded."""

import numpy as np
import pytest
import torch

from formats.gguf_blocks import stored
from formats.rotation import unrotated
from instruction_sets import limited_to
from pelton.formats.gguf import GGUFTensor
from pelton.formats.grouped import GroupedAffine
from pelton.formats.int8 import Int8
from pelton.formats.weight import multiply, multiply_gated, pack
from pelton.kernels.cpu import extension

pytestmark = pytest.mark.skipif(extension is None, reason="needs the CPU kernels")


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) + 0.2


def rounded_between_extremes(w: torch.Tensor) -> torch.Tensor:
    """w [N, K] with each group of 32 rounded to 16 levels from its smallest to its largest value."""
    groups = w.view(len(w), -1, 32)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    scale = (high - low) / 15
    return (((groups - low) / scale).round() * scale + low).view_as(w)


@pytest.mark.parametrize("num_inputs", [96, 576])
def test_the_search_beats_rounding_between_the_extremes(num_inputs):
    w = random(130, num_inputs)
    weight = GroupedAffine.quantize([w], torch.bfloat16)
    assert weight.rotated == (num_inputs == 576)
    error = (weight.dequantize() - w).square().mean().sqrt()
    plain = (rounded_between_extremes(w) - w).square().mean().sqrt()
    assert 0.5 * plain < error < 0.95 * plain


def test_values_on_a_grid_of_16_levels_are_kept():
    levels = torch.randint(0, 16, (40, 96), generator=torch.Generator().manual_seed(0))
    levels[:, ::32], levels[:, 1::32] = 0, 15
    w = levels / 8 - 1.25
    assert torch.equal(GroupedAffine.quantize([w], torch.float32).dequantize(), w)


def test_a_rotated_weight_holds_the_rotated_values():
    """What is exact after a rotation comes back exactly."""
    levels = torch.randint(0, 16, (20, 64), generator=torch.Generator().manual_seed(0)).float()
    levels[:, ::32], levels[:, 1::32] = 0, 15
    w = torch.from_numpy(unrotated(levels.numpy()))
    torch.testing.assert_close(GroupedAffine.quantize([w], torch.float32).dequantize(), w, rtol=0, atol=0.02)


@pytest.mark.parametrize("shape", [(1, 32), (16, 64), (47, 96), (70, 192)])
def test_the_kernels_agree_bit_for_bit(shape):
    w = random(*shape)
    w[0, :32] = 0.5
    w[-1] = 1e-6
    fast = GroupedAffine.quantize([w], torch.float32)
    with limited_to("portable"):
        slow = GroupedAffine.quantize([w], torch.float32)
    assert torch.equal(fast.data, slow.data)
    assert bool(fast.dequantize().isfinite().all())


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("sizes", [(16, 32, 48), (5, 30, 1, 14), (17, 17), (40, 10), (12,)])
def test_parts_are_packed_one_after_the_other(sizes, gated):
    parts = [random(size, 96, seed=seed) for seed, size in enumerate(sizes)]
    weight = GroupedAffine.quantize(parts, torch.bfloat16, gated=gated)
    expected = torch.cat([GroupedAffine.quantize([part], torch.bfloat16).dequantize() for part in parts])
    assert torch.equal(weight.dequantize(), expected)


@pytest.mark.parametrize("source", [torch.bfloat16, torch.float16])
def test_sources_of_any_type_give_what_their_values_give(source):
    w = random(20, 64).to(source)
    expected = GroupedAffine.quantize([w.float()], torch.float32)
    assert torch.equal(GroupedAffine.quantize([w], torch.float32).data, expected.data)
    tensor, values = stored("Q8_0", 20, 64)
    expected = GroupedAffine.quantize([values], torch.float32)
    assert torch.equal(GroupedAffine.quantize([tensor], torch.float32).data, expected.data)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1e7])
@pytest.mark.parametrize("at", [(0, 0), (19, 63), (16, 20)])
@pytest.mark.parametrize("instruction_set", ["portable", "avx512"])
def test_a_weight_that_float16_cannot_hold_is_refused(bad, at, instruction_set):
    w = random(20, 64)
    w[at] = bad
    with limited_to(instruction_set), pytest.raises(ValueError, match="NaN, infinite or beyond"):
        GroupedAffine.quantize([w], torch.float32)


def test_the_product_is_that_of_the_values():
    gate, up, x = random(40, 64, seed=1), random(40, 64, seed=2), random(5, 64)
    weight = GroupedAffine.quantize([gate], torch.float32)
    expected = x @ weight.dequantize().T
    torch.testing.assert_close(multiply(x, weight, None, torch.empty(5, 40)), expected, rtol=0.02, atol=0.3)
    weight = pack([gate, up], torch.float32, "int4", gated=True)
    assert isinstance(weight, GroupedAffine)
    gate, up = (x @ weight.dequantize().T).chunk(2, dim=1)
    expected = torch.nn.functional.silu(gate) * up
    torch.testing.assert_close(multiply_gated(x, weight, None, torch.empty(5, 40)), expected, rtol=0.05, atol=1.5)


def test_what_is_stored_in_4_bits_stays_as_it_is():
    (four, values), (eight, _) = stored("Q4_1", 20, 64), stored("Q8_0", 12, 64)
    kept = pack([four, four], torch.bfloat16, "int4")
    assert isinstance(kept, GroupedAffine)
    assert not kept.rotated
    assert torch.equal(kept.dequantize(), torch.cat([values, values]))
    mixed = pack([four, eight], torch.bfloat16, "int4")
    assert isinstance(mixed, GroupedAffine)
    assert mixed.rotated
    assert isinstance(pack([GGUFTensor(eight.raw, "Q8_0", (12, 64))], torch.bfloat16, "int4"), GroupedAffine)
    assert isinstance(pack([random(5, 40)], torch.bfloat16, "int4"), Int8)


def test_float16_scales_round_to_nearest_even():
    """Against numpy, by way of groups whose minimum and scale are the numbers to round."""
    values = np.random.default_rng(0).uniform(-1, 1, 4096).astype(np.float32)
    values *= np.float32(2.0) ** np.random.default_rng(1).integers(-24, 15, 4096)
    w = torch.from_numpy(values)[:, None].expand(-1, 32).contiguous()
    expected = torch.from_numpy(values.astype(np.float16).astype(np.float32))
    for name in ("portable", "avx512"):
        with limited_to(name):
            actual = GroupedAffine.quantize([w], torch.float32).dequantize()
        assert torch.equal(actual[:, 0], expected), name
