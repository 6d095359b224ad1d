"""Products with int8 weights: exactly the arithmetic that is promised, the same for a row in any company."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from formats.rotation import NORM, rotated, unrotated
from instruction_sets import limited_to, under
from pelton.formats.int8 import Int8
from pelton.kernels.cpu import extension
from pelton.ops.int8 import int8_linear

pytestmark = pytest.mark.skipif(extension is None, reason="needs the CPU kernels")
FLOAT32, BFLOAT16 = torch.float32, torch.bfloat16
EACH_KERNEL = under("portable", "avx2", "avx512_vnni_bf16")
GROUP = 64
NUM_ROWS = (*range(1, 18), 31, 33, 64, 65, 300, 600)
GUARD = 12345.0


@pytest.fixture(params=[1, 2])
def num_threads(request: pytest.FixtureRequest):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def random(*shape: int, dtype: torch.dtype = FLOAT32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def int8(num_weights: int, num_inputs: int, *, gated: bool = False) -> tuple[Int8, torch.Tensor]:
    """(a weight of random values, what it holds in float64)."""
    weight = Int8.quantize([random(num_weights, num_inputs, seed=1)], BFLOAT16, gated=gated)
    return weight, weight.dequantize().double()


def quantized(x: torch.Tensor) -> torch.Tensor:
    """x [T, K] rotated, as int8 times (largest magnitude of a group / 127), and rotated back, in float64."""
    num_rows, num_inputs = x.shape
    with np.errstate(invalid="ignore"):
        groups = rotated(x.float().numpy()).reshape(num_rows, -1, GROUP)
    largest = np.abs(groups).max(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        codes = np.where(largest > 0, np.rint(groups * (np.float32(127) / largest)), 0)
    scale = largest * (NORM / np.float32(127))
    values = (codes.astype(np.float64) * scale).reshape(num_rows, -1)
    return torch.from_numpy(unrotated(values))[:, :num_inputs]


def close(actual: torch.Tensor, expected: torch.Tensor, x: torch.Tensor, values: torch.Tensor) -> None:
    """Within the rounding of float32 sums over groups, whose terms are as large as |x| |w|.

    Inputs that complete a block of 64 round to other than zero in x and in the weight: their product is neglected too.
    """
    bound = x.double().abs() @ values.abs().T
    relative = 2**-8 if actual.dtype is BFLOAT16 else 0
    tolerance = 2e-6 if x.shape[1] % GROUP == 0 else 2e-5
    assert bool(((actual.double() - expected).abs() <= tolerance * bound + relative * expected.abs() + 1e-12).all())


@EACH_KERNEL
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
def test_is_the_product_of_the_weight_and_the_quantized_input(dtype, instruction_set):
    for num_outputs, num_inputs in itertools.product((1, 17, 32, 47), (1, 64, 100)):
        weight, values = int8(num_outputs, num_inputs)
        for num_rows in (1, 7, 15):
            x = random(num_rows, num_inputs, dtype=dtype)
            actual = int8_linear(x, weight, out_dtype=FLOAT32)
            close(actual, quantized(x) @ values.T, x, values)


@EACH_KERNEL
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_gated_weight_gives_silu_of_gate_times_up(with_bias, instruction_set):
    for size, num_inputs in itertools.product((1, 16, 17, 40), (64, 128)):
        weight, values = int8(2 * size, num_inputs, gated=True)
        bias = random(2 * size, seed=2) if with_bias else None
        for num_rows in (1, 7, 15):
            x = random(num_rows, num_inputs, dtype=BFLOAT16)
            products = quantized(x) @ values.T + (0 if bias is None else bias.double())
            gate, up = products.chunk(2, dim=1)
            actual = int8_linear(x, weight, bias, FLOAT32)
            assert actual.shape == (num_rows, size)
            expected = torch.nn.functional.silu(gate) * up
            torch.testing.assert_close(actual.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("outlier", [1, 30])
def test_is_the_exact_product_within_the_error_of_an_int8_input(outlier):
    """Outliers as in inputs of real layers, one in 16 elements, cost little."""
    weight, values = int8(130, 576)
    x = random(33, 576)
    x[:, 5::64] *= outlier
    error = (int8_linear(x, weight).double() - x.double() @ values.T).abs()
    assert error.square().mean().sqrt() < 0.007 * (x.double() @ values.T).square().mean().sqrt()


@EACH_KERNEL
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
def test_the_kernels_agree_bit_for_bit(dtype, instruction_set):
    weight, _ = int8(83, 200)
    x = random(29, 200, dtype=dtype)
    x[3], x[4, :64], x[5, 40], x[6], x[7, 9] = 0, 0, torch.inf, 1e-39, torch.nan
    bias = random(83, seed=2)
    for out_dtype in (FLOAT32, BFLOAT16):
        fast = int8_linear(x, weight, bias, out_dtype)
        with limited_to("portable"):
            slow = int8_linear(x, weight, bias, out_dtype)
        assert torch.equal(fast.nan_to_num(nan=7e7), slow.nan_to_num(nan=7e7))


@EACH_KERNEL
def test_the_largest_sums_do_not_overflow(instruction_set):
    largest = torch.from_numpy(unrotated(np.ones((1, 128), np.float32)))  # rotated again, all codes are 127
    weight = Int8.quantize([largest * torch.tensor([[1.0], [-1.0]]).repeat(20, 1)], FLOAT32)
    x = torch.cat([largest, -largest])
    expected = x.double() @ weight.dequantize().double().T
    torch.testing.assert_close(int8_linear(x, weight).double(), expected, rtol=1e-6, atol=0)


@EACH_KERNEL
@pytest.mark.parametrize("gated", [False, True])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(gated, instruction_set, num_threads):
    num_weights, num_inputs = (38, 100) if instruction_set != "avx512_vnni_bf16" else (1100, 320)
    weight, _ = int8(num_weights, num_inputs, gated=gated)
    x = random(max(NUM_ROWS), num_inputs, dtype=BFLOAT16)
    alone = torch.cat([int8_linear(row[None], weight, out_dtype=FLOAT32) for row in x])
    for num_rows in NUM_ROWS:
        first = int8_linear(x[:num_rows], weight, out_dtype=FLOAT32)
        last = int8_linear(x[-num_rows:], weight, out_dtype=FLOAT32)
        assert torch.equal(first, alone[:num_rows]), num_rows
        assert torch.equal(last, alone[-num_rows:]), num_rows


def test_a_row_has_the_same_bits_when_rows_are_cut_into_several_tasks(num_threads):
    weight, _ = int8(64, 8192)
    x = random(300, 8192, dtype=BFLOAT16)
    whole = int8_linear(x, weight)
    for row in (0, 6, 7, 62, 63, 191, 288, 299):
        assert torch.equal(int8_linear(x[row : row + 1], weight)[0], whole[row])


@EACH_KERNEL
@pytest.mark.parametrize("bias_dtype", [FLOAT32, BFLOAT16])
@pytest.mark.parametrize("out_dtype", [FLOAT32, BFLOAT16])
def test_bias_is_added_before_rounding(instruction_set, bias_dtype, out_dtype):
    weight, values = int8(53, 96)
    x, bias = random(37, 96, dtype=BFLOAT16), random(53, dtype=bias_dtype, seed=2) * 100
    actual = int8_linear(x, weight, bias, out_dtype)
    assert actual.dtype is out_dtype
    exact = quantized(x) @ values.T + bias.double()
    torch.testing.assert_close(actual.double(), exact, rtol=2**-8 if out_dtype is BFLOAT16 else 1e-6, atol=2e-3)


@EACH_KERNEL
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
def test_rows_of_x_may_be_strided(instruction_set, dtype):
    whole = random(40, 200, dtype=dtype)
    weight, _ = int8(48, 70)
    x = whole[::2, 13:83]
    strided, plain = (int8_linear(rows, weight) for rows in (x, x.contiguous()))
    assert torch.equal(strided, plain)


@EACH_KERNEL
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("num_rows", [1, 7, 33])
def test_reads_and_writes_nothing_beyond_its_operands(num_rows, gated, instruction_set):
    """NaN stands around every row of x, a mark around every row of the output."""
    num_outputs, num_inputs = 37, 70
    surrounded = torch.full((num_rows + 2, num_inputs + 80), torch.nan, dtype=BFLOAT16)
    x = surrounded[1:-1, 40:-40]
    x.copy_(random(num_rows, num_inputs))
    weight, _ = int8(2 * num_outputs if gated else num_outputs, num_inputs, gated=gated)
    guarded = torch.full((num_rows + 2, num_outputs + 40), GUARD, dtype=FLOAT32)
    out = guarded[1:-1, 20:-20]
    assert extension is not None
    extension.int8_linear(
        x.data_ptr(), x.stride(0), 1, weight.data.data_ptr(), gated, 0, 0, out.data_ptr(), out.stride(0), 0,
        False, num_rows, num_outputs, num_inputs,
    )  # fmt: skip
    assert torch.equal(out, int8_linear(x, weight, out_dtype=FLOAT32))
    out.fill_(GUARD)
    assert bool((guarded == GUARD).all())


@EACH_KERNEL
def test_a_product_is_added_to_what_is_there(instruction_set):
    weight, _ = int8(45, 96)
    x, stream = random(19, 96), random(19, 60, seed=3)
    before = stream.clone()
    int8_linear(x, weight, out=stream[:, 5:50], accumulate=True)
    expected = before[:, 5:50] + int8_linear(x, weight)
    assert torch.equal(stream[:, 5:50], expected)
    assert torch.equal(stream[:, :5], before[:, :5])
    assert torch.equal(stream[:, 50:], before[:, 50:])


def test_no_rows_give_no_rows():
    weight, _ = int8(20, 32)
    assert int8_linear(random(0, 32), weight).shape == (0, 20)


@pytest.mark.parametrize("gated", [False, True])
def test_nan_and_infinity_stay_in_their_row(gated):
    weight, _ = int8(40, 64, gated=gated)
    x = random(9, 64, dtype=BFLOAT16)
    clean = int8_linear(x, weight)
    x[3, 5], x[4, 6] = torch.nan, torch.inf
    dirty = int8_linear(x, weight)
    assert not bool(dirty[3:5].isfinite().any())
    others = [0, 1, 2, 5, 6, 7, 8]
    assert torch.equal(dirty[others], clean[others])


def test_several_callers_at_once_get_the_bits_of_one():
    """One of them has the help of the worker threads; the others work alone."""
    weight, _ = int8(200, 320)
    x = random(64, 320, dtype=BFLOAT16)
    expected = int8_linear(x, weight)
    with ThreadPoolExecutor(4) as callers:
        results = list(callers.map(lambda _: int8_linear(x, weight), range(200)))
    assert all(torch.equal(result, expected) for result in results)
