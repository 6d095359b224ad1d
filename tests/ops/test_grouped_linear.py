"""Products with grouped weights: exactly the arithmetic that is promised, the same for a row in any company."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from formats.gguf_blocks import BLOCK_TYPES, stored
from instruction_sets import limited_to, under
from pelton.formats.grouped import GroupedAffine
from pelton.kernels.cpu import extension
from pelton.ops.grouped import grouped_linear

pytestmark = pytest.mark.skipif(extension is None, reason="needs the CPU kernels")
FLOAT32, BFLOAT16 = torch.float32, torch.bfloat16
EACH_KERNEL = under("portable", "avx2", "avx512_vnni_bf16")
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


def grouped(
    type_name: str, num_weights: int, num_inputs: int, *, gated: bool = False
) -> tuple[GroupedAffine, torch.Tensor]:
    tensor, values = stored(type_name, num_weights, num_inputs)
    return GroupedAffine.from_gguf([tensor], BFLOAT16, gated=gated), values


def quantized(x: torch.Tensor) -> torch.Tensor:
    """x [T, K] as int8 times (largest magnitude of 32 / 127), in float64."""
    groups = x.float().numpy().reshape(len(x), -1, 32)
    largest = np.abs(groups).max(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        codes = np.where(largest > 0, np.rint(groups * (np.float32(127) / largest)), 0)
    scale = largest * np.float32(1 / 127)
    return torch.from_numpy(codes.astype(np.float64) * scale).view(len(x), -1)


def close(actual: torch.Tensor, expected: torch.Tensor, x: torch.Tensor, values: torch.Tensor) -> None:
    """Within the rounding of float32 sums over groups, whose terms are as large as |x| |w|."""
    bound = x.double().abs() @ values.double().abs().T
    relative = 2**-8 if actual.dtype is BFLOAT16 else 0
    assert bool(((actual.double() - expected).abs() <= 2e-6 * bound + relative * expected.abs() + 1e-12).all())


@EACH_KERNEL
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
@pytest.mark.parametrize("type_name", BLOCK_TYPES)
def test_is_the_product_of_the_weight_and_the_quantized_input(type_name, dtype, instruction_set):
    for num_outputs, num_inputs in itertools.product((1, 17, 32, 47), (32, 96)):
        weight, values = grouped(type_name, num_outputs, num_inputs)
        for num_rows in (1, 7, 15):
            x = random(num_rows, num_inputs, dtype=dtype)
            actual = grouped_linear(x, weight, out_dtype=FLOAT32)
            expected = quantized(x) @ values.double().T
            close(actual, expected, x, values)


@EACH_KERNEL
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("type_name", BLOCK_TYPES)
def test_a_gated_weight_gives_silu_of_gate_times_up(type_name, with_bias, instruction_set):
    for size, num_inputs in itertools.product((1, 16, 17, 40), (32, 96)):
        weight, values = grouped(type_name, 2 * size, num_inputs, gated=True)
        bias = random(2 * size, seed=2) if with_bias else None
        for num_rows in (1, 7, 15):
            x = random(num_rows, num_inputs, dtype=BFLOAT16)
            products = quantized(x) @ values.double().T + (0 if bias is None else bias.double())
            gate, up = products.chunk(2, dim=1)
            actual = grouped_linear(x, weight, bias, FLOAT32)
            assert actual.shape == (num_rows, size)
            torch.testing.assert_close(actual.double(), torch.nn.functional.silu(gate) * up, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("type_name", BLOCK_TYPES)
def test_is_the_exact_product_within_the_error_of_an_int8_input(type_name):
    weight, values = grouped(type_name, 130, 576)
    x = random(33, 576)
    error = (grouped_linear(x, weight).double() - x.double() @ values.double().T).abs()
    half_steps = x.view(33, -1, 32).abs().amax(-1, keepdim=True).expand(-1, -1, 32).reshape(33, 576) / 254
    assert bool((error <= 1.001 * half_steps.double() @ values.double().abs().T).all())
    assert error.square().mean().sqrt() < 0.01 * (x.double() @ values.double().T).square().mean().sqrt()


@EACH_KERNEL
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
@pytest.mark.parametrize("type_name", BLOCK_TYPES)
def test_the_kernels_agree_bit_for_bit(type_name, dtype, instruction_set):
    weight, _ = grouped(type_name, 83, 192)
    x = random(29, 192, dtype=dtype)
    x[3], x[4, :32], x[5, 40], x[6] = 0, 0, torch.inf, 1e-39
    bias = random(83, seed=2)
    for out_dtype in (FLOAT32, BFLOAT16):
        fast = grouped_linear(x, weight, bias, out_dtype)
        with limited_to("portable"):
            slow = grouped_linear(x, weight, bias, out_dtype)
        assert torch.equal(fast.nan_to_num(nan=7e7), slow.nan_to_num(nan=7e7))


@EACH_KERNEL
@pytest.mark.parametrize(
    ("type_name", "code"), [("Q4_0", 0x00), ("Q4_0", 0xFF), ("Q4_1", 0xFF), ("Q8_0", 0x80), ("Q8_0", 0x7F)]
)
def test_the_largest_sums_do_not_overflow(type_name, code, instruction_set):
    tensor, _ = stored(type_name, 40, 64)
    tensor.raw.view(80, -1)[:, 4 if type_name == "Q4_1" else 2 :] = code
    weight = GroupedAffine.from_gguf([tensor], FLOAT32)
    x = torch.ones(4, 64)
    x[1], x[2, ::2], x[3, 32:] = -1, -1, -1
    values = weight.dequantize()
    close(grouped_linear(x, weight), x.double() @ values.double().T, x, values)


@EACH_KERNEL
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
def test_a_rotated_weight_is_multiplied_by_the_rotated_input(dtype, instruction_set):
    """Outliers, one in 16 elements, cost no accuracy then, and the kernels agree bit for bit."""
    weight = GroupedAffine.quantize([random(83, 192, seed=1)], BFLOAT16)
    assert weight.rotated
    x = random(29, 192, dtype=dtype)
    x[:, 5::64] *= 30
    actual = grouped_linear(x, weight, out_dtype=FLOAT32)
    expected = x.double() @ weight.dequantize().double().T
    assert (actual - expected).square().mean().sqrt() < 0.007 * expected.square().mean().sqrt()
    with limited_to("portable"):
        assert torch.equal(grouped_linear(x, weight, out_dtype=FLOAT32), actual)


@EACH_KERNEL
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("type_name", BLOCK_TYPES)
def test_a_row_has_the_same_bits_alone_and_in_any_batch(type_name, gated, instruction_set, num_threads):
    num_weights, num_inputs = (38, 64) if instruction_set != "avx512_vnni_bf16" else (1100, 320)
    weight, _ = grouped(type_name, num_weights, num_inputs, gated=gated)
    x = random(max(NUM_ROWS), num_inputs, dtype=BFLOAT16)
    alone = torch.cat([grouped_linear(x[i : i + 1], weight, out_dtype=FLOAT32) for i in range(max(NUM_ROWS))])
    for num_rows in NUM_ROWS:
        first = grouped_linear(x[:num_rows], weight, out_dtype=FLOAT32)
        last = grouped_linear(x[-num_rows:], weight, out_dtype=FLOAT32)
        assert torch.equal(first, alone[:num_rows]), num_rows
        assert torch.equal(last, alone[-num_rows:]), num_rows


def test_a_row_has_the_same_bits_when_rows_are_cut_into_several_tasks(num_threads):
    weight, _ = grouped("Q4_1", 64, 8192)
    x = random(300, 8192, dtype=BFLOAT16)
    whole = grouped_linear(x, weight)
    for row in (0, 11, 12, 95, 96, 191, 288, 299):
        assert torch.equal(grouped_linear(x[row : row + 1], weight)[0], whole[row])


@EACH_KERNEL
@pytest.mark.parametrize("bias_dtype", [FLOAT32, BFLOAT16])
@pytest.mark.parametrize("out_dtype", [FLOAT32, BFLOAT16])
def test_bias_is_added_before_rounding(instruction_set, bias_dtype, out_dtype):
    weight, values = grouped("Q4_1", 53, 96)
    x, bias = random(37, 96, dtype=BFLOAT16), random(53, dtype=bias_dtype, seed=2) * 100
    actual = grouped_linear(x, weight, bias, out_dtype)
    assert actual.dtype is out_dtype
    exact = quantized(x) @ values.double().T + bias.double()
    torch.testing.assert_close(actual.double(), exact, rtol=2**-8 if out_dtype is BFLOAT16 else 1e-6, atol=1e-3)


@EACH_KERNEL
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
def test_rows_of_x_may_be_strided(instruction_set, dtype):
    whole = random(40, 200, dtype=dtype)
    weight, _ = grouped("Q8_0", 48, 64)
    x = whole[::2, 13:77]
    strided, plain = (grouped_linear(rows, weight) for rows in (x, x.contiguous()))
    assert torch.equal(strided, plain)


@EACH_KERNEL
@pytest.mark.parametrize("type_name", BLOCK_TYPES)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("num_rows", [1, 7, 33])
def test_reads_and_writes_nothing_beyond_its_operands(num_rows, gated, type_name, instruction_set):
    """NaN stands around every row of x, a mark around every row of the output."""
    num_outputs, num_inputs = 37, 64
    surrounded = torch.full((num_rows + 2, num_inputs + 80), torch.nan, dtype=BFLOAT16)
    x = surrounded[1:-1, 40:-40]
    x.copy_(random(num_rows, num_inputs))
    weight, _ = grouped(type_name, 2 * num_outputs if gated else num_outputs, num_inputs, gated=gated)
    guarded = torch.full((num_rows + 2, num_outputs + 40), GUARD, dtype=FLOAT32)
    out = guarded[1:-1, 20:-20]
    assert extension is not None
    extension.grouped_linear(
        x.data_ptr(), x.stride(0), 1, weight.data.data_ptr(), int(weight.kind), False, gated, 0, 0, out.data_ptr(),
        out.stride(0), 0, False, num_rows, num_outputs, num_inputs,
    )  # fmt: skip
    assert torch.equal(out, grouped_linear(x, weight, out_dtype=FLOAT32))
    out.fill_(GUARD)
    assert bool((guarded == GUARD).all())


@EACH_KERNEL
def test_a_product_is_added_to_what_is_there(instruction_set):
    weight, _ = grouped("Q4_1", 45, 96)
    x, stream = random(19, 96), random(19, 60, seed=3)
    before = stream.clone()
    grouped_linear(x, weight, out=stream[:, 5:50], accumulate=True)
    expected = before[:, 5:50] + grouped_linear(x, weight)
    assert torch.equal(stream[:, 5:50], expected)
    assert torch.equal(stream[:, :5], before[:, :5])
    assert torch.equal(stream[:, 50:], before[:, 50:])


def test_no_rows_give_no_rows():
    weight, _ = grouped("Q4_0", 20, 32)
    assert grouped_linear(random(0, 32), weight).shape == (0, 20)


@pytest.mark.parametrize("type_name", BLOCK_TYPES)
def test_nan_and_infinity_stay_in_their_row(type_name):
    weight, _ = grouped(type_name, 40, 64)
    x = random(9, 64, dtype=BFLOAT16)
    clean = grouped_linear(x, weight)
    x[3, 5], x[4, 6] = torch.nan, torch.inf
    dirty = grouped_linear(x, weight)
    assert not bool(dirty[3:5].isfinite().any())
    others = [0, 1, 2, 5, 6, 7, 8]
    assert torch.equal(dirty[others], clean[others])


def test_several_callers_at_once_get_the_bits_of_one():
    """One of them has the help of the worker threads; the others work alone."""
    weight, _ = grouped("Q4_1", 200, 320)
    x = random(64, 320, dtype=BFLOAT16)
    expected = grouped_linear(x, weight)
    with ThreadPoolExecutor(4) as callers:
        results = list(callers.map(lambda _: grouped_linear(x, weight), range(200)))
    assert all(torch.equal(result, expected) for result in results)
