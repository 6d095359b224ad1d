"""silu_mul: right against float64 over the whole range of its inputs, row by row."""

import pytest
import torch

from instruction_sets import under
from pelton.ops import reference
from pelton.ops.activation import silu_mul

FLOAT32, BFLOAT16 = torch.float32, torch.bfloat16
EACH_KERNEL = under("portable", "avx2", "avx512")


def random(*shape: int, dtype: torch.dtype = FLOAT32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def exact(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.double().chunk(2, dim=-1)
    return gate * torch.sigmoid(gate) * up


def assert_near(actual: torch.Tensor, expected: torch.Tensor) -> None:
    relative = 2**-8 if actual.dtype is BFLOAT16 else 1e-6
    torch.testing.assert_close(actual.double(), expected, rtol=relative, atol=1e-30)


@EACH_KERNEL
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
@pytest.mark.parametrize("shape", [(1, 2), (3, 30), (5, 32), (2, 34), (4, 3072), (200, 1000)])
def test_matches_float64(instruction_set, dtype, shape):
    x = random(*shape, dtype=dtype) * 4
    y = silu_mul(x)
    assert y.dtype is dtype
    assert_near(y, exact(x))


@EACH_KERNEL
def test_is_accurate_from_deep_negative_to_large_gates(instruction_set):
    gate = torch.linspace(-80, 80, 16001)
    x = torch.stack([gate, torch.ones_like(gate)], dim=1)
    torch.testing.assert_close(silu_mul(x).double(), exact(x), rtol=1e-6, atol=1e-36)


@EACH_KERNEL
def test_extreme_gates_saturate(instruction_set):
    gate = torch.tensor([-1e30, -200.0, 200.0, 1e30, torch.inf, torch.nan, 0.0])
    y = silu_mul(torch.stack([gate, torch.ones_like(gate)], dim=1))[:, 0]
    torch.testing.assert_close(y[:3], torch.tensor([0.0, 0.0, 200.0]))
    torch.testing.assert_close(y[3:5], gate[3:5])
    assert bool(y[5].isnan())
    assert y[6] == 0


@EACH_KERNEL
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
def test_a_row_has_the_same_bits_alone_and_among_rows_enough_for_threads(instruction_set, dtype):
    x = random(200, 1154, dtype=dtype)
    whole = silu_mul(x)
    for row in (0, 27, 28, 199):
        assert torch.equal(silu_mul(x[row : row + 1])[0], whole[row])


@EACH_KERNEL
def test_rows_may_be_strided_and_absent(instruction_set):
    x = random(20, 100)
    assert torch.equal(silu_mul(x[::3, 10:76]), silu_mul(x[::3, 10:76].contiguous()))
    assert silu_mul(random(0, 66)).shape == (0, 33)


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
def test_the_reference_agrees(dtype):
    x = random(6, 200, dtype=dtype)
    assert_near(reference.silu_mul(x), exact(x))
