"""RMSNorm: right against Hugging Face's module and float64, in place where it says so, row by row."""

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from instruction_sets import under
from pelton.ops import reference
from pelton.ops.norm import head_norm, rms_norm

FLOAT32, BFLOAT16 = torch.float32, torch.bfloat16
EPS = 1e-5
EACH_KERNEL = under("portable", "avx2", "avx512")


def random(*shape: int, dtype: torch.dtype = FLOAT32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def exact(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double()


def assert_near(actual: torch.Tensor, expected: torch.Tensor) -> None:
    relative = 2**-8 if actual.dtype is BFLOAT16 else 2e-6
    torch.testing.assert_close(actual.double(), expected, rtol=relative, atol=1e-6)


@EACH_KERNEL
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
@pytest.mark.parametrize("weight_dtype", [FLOAT32, BFLOAT16])
@pytest.mark.parametrize("shape", [(1, 1), (3, 15), (5, 16), (2, 31), (7, 33), (4, 576), (300, 577)])
def test_matches_float64(instruction_set, dtype, weight_dtype, shape):
    x, weight = random(*shape, dtype=dtype) * 3, random(shape[1], dtype=weight_dtype, seed=1)
    before = x.clone()
    y = rms_norm(x, weight, EPS)
    assert y.dtype is dtype
    assert torch.equal(x, before)
    assert_near(y, exact(x, weight))


def test_float32_agrees_with_hugging_face():
    module = LlamaRMSNorm(576, eps=EPS)
    module.weight.data.copy_(random(576, seed=1))
    x = random(20, 576)
    torch.testing.assert_close(rms_norm(x, module.weight.data, EPS), module(x).detach(), rtol=1e-6, atol=1e-6)


@EACH_KERNEL
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
@pytest.mark.parametrize("out_dtype", [FLOAT32, BFLOAT16])
def test_chosen_rows_go_where_they_are_told_in_the_type_there(instruction_set, dtype, out_dtype):
    x, weight = random(9, 100, dtype=dtype), random(100, seed=1)
    rows = torch.tensor([8, 0, 3, 3])
    guarded = torch.full((6, 120), 7.0, dtype=out_dtype)
    out = guarded[1:-1, 10:-10]
    assert rms_norm(x, weight, EPS, rows=rows, out=out) is out
    assert_near(out, exact(x[rows], weight))
    out.fill_(7.0)
    assert bool((guarded == 7.0).all())


@EACH_KERNEL
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
def test_head_norm_changes_its_view_and_nothing_else(instruction_set, dtype):
    """q of a fused projection: heads of 40 between the marks of other columns."""
    fused, weight = random(6, 300, dtype=dtype), random(40, seed=1)
    before = fused.clone()
    heads = fused[:, 7:167].view(6, 4, 40)
    head_norm(heads, weight, EPS)
    assert_near(heads, exact(before[:, 7:167].view(6, 4, 40), weight))
    assert torch.equal(fused[:, :7], before[:, :7])
    assert torch.equal(fused[:, 167:], before[:, 167:])


@EACH_KERNEL
def test_strided_rows(instruction_set):
    whole, weight = random(8, 90), random(50, seed=2)
    x = whole[::2, 20:70]
    assert_near(rms_norm(x, weight, EPS), exact(x, weight))


@EACH_KERNEL
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
def test_a_row_has_the_same_bits_alone_and_among_rows_enough_for_threads(instruction_set, dtype):
    x, weight = random(400, 576, dtype=dtype), random(576, seed=1)
    whole = rms_norm(x, weight, EPS)
    for row in (0, 28, 29, 399):
        assert torch.equal(rms_norm(x[row : row + 1], weight, EPS)[0], whole[row])


@EACH_KERNEL
def test_no_rows_and_zero_rows(instruction_set):
    weight = random(64)
    assert rms_norm(random(0, 64), weight, EPS).shape == (0, 64)
    assert torch.equal(rms_norm(torch.zeros(2, 64), weight, EPS), torch.zeros(2, 64))
    head_norm(random(0, 3, 64), weight, EPS)


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
def test_the_reference_agrees(dtype):
    x, weight = random(5, 100, dtype=dtype), random(100, seed=1)
    assert_near(reference.rms_norm(x, weight, EPS), exact(x, weight))
