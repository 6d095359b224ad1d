"""Dense products: right against float64, and bit for bit the same for a row whatever stands beside it."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from instruction_sets import INSTRUCTION_SETS, available, limited_to
from pelton.formats.dense import Dense
from pelton.kernels.cpu import extension
from pelton.ops.linear import linear

FLOAT32, BFLOAT16 = torch.float32, torch.bfloat16
NUM_ROWS = (1, 2, 3, 5, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 128, 300, 512)
GUARD = 12345.0


def kernels_of(types: tuple[torch.dtype, torch.dtype]) -> list[str]:
    """The instruction sets with a kernel of their own for these types."""
    return INSTRUCTION_SETS if types == (BFLOAT16, BFLOAT16) else available("portable", "avx2", "avx512")


@pytest.fixture(params=[1, 2])
def num_threads(request: pytest.FixtureRequest):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def random(*shape: int, dtype: torch.dtype = FLOAT32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def exact(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    y = x.double() @ w.double().T
    return y if bias is None else y + bias.double()


def assert_near(actual: torch.Tensor, expected: torch.Tensor, num_inputs: int) -> None:
    """Within the rounding of a float32 sum of products of unit variance, and of the output type."""
    relative = 2**-8 if actual.dtype is BFLOAT16 else 1e-6
    torch.testing.assert_close(actual.double(), expected, rtol=relative, atol=5e-6 * num_inputs**0.5)


@pytest.mark.parametrize("types", [(FLOAT32, FLOAT32), (FLOAT32, BFLOAT16), (BFLOAT16, BFLOAT16), (BFLOAT16, FLOAT32)])
@pytest.mark.parametrize("num_inputs", [1, 2, 31, 32, 33, 67, 130])
def test_matches_a_float64_product_at_odd_sizes(types, num_inputs):
    x = random(50, num_inputs, dtype=types[0])
    for num_outputs in (1, 16, 17, 47, 130):
        w = random(num_outputs, num_inputs, dtype=types[1], seed=1)
        weight, expected = Dense.from_tensor(w, types[1]), exact(x, w)
        for instruction_set, num_rows in itertools.product(kernels_of(types), (1, 6, 7, 13, 17, 33, 50)):
            with limited_to(instruction_set):
                actual = linear(x[:num_rows], weight, out_dtype=FLOAT32)
            assert actual.dtype is FLOAT32
            assert_near(actual, expected[:num_rows], num_inputs)


@pytest.mark.parametrize(
    ("types", "instruction_set"),
    [
        (types, name)
        for types in [(FLOAT32, FLOAT32), (FLOAT32, BFLOAT16), (BFLOAT16, BFLOAT16)]
        for name in kernels_of(types)
    ],
    indirect=["instruction_set"],
)
def test_a_row_has_the_same_bits_alone_and_in_any_batch(types, instruction_set, num_threads):
    num_outputs, num_inputs = (50, 67) if instruction_set == "portable" else (176, 611)
    x = random(max(NUM_ROWS), num_inputs, dtype=types[0])
    weight = Dense.from_tensor(random(num_outputs, num_inputs, dtype=types[1], seed=1), types[1])
    alone = torch.cat([linear(x[i : i + 1], weight, out_dtype=FLOAT32) for i in range(len(x))])
    assert_near(alone, exact(x, weight.dequantize()), num_inputs)
    for num_rows in NUM_ROWS:
        first = linear(x[:num_rows], weight, out_dtype=FLOAT32)
        last = linear(x[-num_rows:], weight, out_dtype=FLOAT32)
        assert torch.equal(first, alone[:num_rows]), num_rows
        assert torch.equal(last, alone[-num_rows:]), num_rows


@pytest.mark.skipif(extension is None, reason="library products, which the fallback uses, do not promise this")
def test_a_row_has_the_same_bits_when_its_depth_is_long_and_rows_are_cut_into_several_tasks(num_threads):
    x = random(300, 8192, dtype=BFLOAT16)
    weight = Dense.from_tensor(random(64, 8192, dtype=BFLOAT16, seed=1), BFLOAT16)
    whole = linear(x, weight)
    for row in (0, 95, 96, 191, 192, 288, 299):
        assert torch.equal(linear(x[row : row + 1], weight)[0], whole[row])


@pytest.mark.parametrize("bias_dtype", [FLOAT32, BFLOAT16])
@pytest.mark.parametrize("out_dtype", [FLOAT32, BFLOAT16])
def test_bias_is_added_before_rounding(instruction_set, bias_dtype, out_dtype):
    x, w = random(37, 70, dtype=BFLOAT16), random(53, 70, dtype=BFLOAT16, seed=1)
    bias = random(53, dtype=bias_dtype, seed=2) * 100
    actual = linear(x, Dense.from_tensor(w, BFLOAT16), bias, out_dtype)
    assert actual.dtype is out_dtype
    assert_near(actual, exact(x, w, bias), 70)


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
def test_rows_of_x_may_be_strided(instruction_set, dtype):
    whole = random(40, 200, dtype=dtype)
    weight = Dense.from_tensor(random(48, 71, dtype=dtype, seed=1), dtype)
    x = whole[::2, 13:84]
    assert torch.equal(linear(x, weight), linear(x.contiguous(), weight))


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
@pytest.mark.parametrize("num_rows", [1, 7, 33])
def test_reads_and_writes_nothing_beyond_its_operands(instruction_set, dtype, num_rows):
    """NaN stands around every row of x, a mark around every row of the output."""
    num_outputs, num_inputs = 37, 43
    surrounded = torch.full((num_rows + 2, num_inputs + 80), torch.nan, dtype=dtype)
    x = surrounded[1:-1, 40:-40]
    x.copy_(random(num_rows, num_inputs))
    weight = Dense.from_tensor(random(num_outputs, num_inputs, dtype=dtype, seed=1), dtype)
    guarded = torch.full((num_rows + 2, num_outputs + 40), GUARD, dtype=FLOAT32)
    out = guarded[1:-1, 20:-20]
    code = {FLOAT32: 0, BFLOAT16: 1}[dtype]
    assert extension is not None
    extension.linear(
        x.data_ptr(), x.stride(0), code, weight.data.data_ptr(), code, 0, 0, out.data_ptr(), out.stride(0), 0,
        False, num_rows, num_outputs, num_inputs,
    )  # fmt: skip
    assert_near(out, exact(x, weight.dequantize()), num_inputs)
    out.fill_(GUARD)
    assert bool((guarded == GUARD).all())


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
@pytest.mark.parametrize("packed", [False, True])
def test_a_product_is_added_to_what_is_there(instruction_set, dtype, packed):
    x, bias = random(19, 96, dtype=dtype), random(45, seed=2)
    weight = Dense.from_tensor(random(45, 96, dtype=dtype, seed=1), dtype)
    if not packed:
        weight = Dense(weight.dequantize(), weight.shape, dtype, packed=False)
    stream = random(19, 60, seed=3)
    before = stream.clone()
    assert linear(x, weight, bias, out=stream[:, 5:50], accumulate=True).data_ptr() == stream[:, 5:].data_ptr()
    torch.testing.assert_close(stream[:, 5:50], before[:, 5:50] + linear(x, weight, bias, FLOAT32))
    assert torch.equal(stream[:, :5], before[:, :5])
    assert torch.equal(stream[:, 50:], before[:, 50:])


@pytest.mark.skipif(available("avx2", "avx512") != ["avx2", "avx512"], reason="needs AVX-512")
@pytest.mark.parametrize("types", [(FLOAT32, FLOAT32), (FLOAT32, BFLOAT16), (BFLOAT16, BFLOAT16)])
def test_products_in_float32_arithmetic_have_the_same_bits_in_vectors_of_any_length(types):
    x = random(23, 131, dtype=types[0])
    weight = Dense.from_tensor(random(85, 131, dtype=types[1], seed=1), types[1])
    results = []
    for instruction_set in ("avx2", "avx512"):
        with limited_to(instruction_set):
            results.append(linear(x, weight, random(85, seed=2)))
    assert torch.equal(*results)


def test_no_rows_give_no_rows():
    weight = Dense.from_tensor(random(20, 10), FLOAT32)
    assert linear(random(0, 10), weight).shape == (0, 20)


def test_nan_and_infinity_stay_in_their_row():
    x = random(9, 64, dtype=BFLOAT16)
    weight = Dense.from_tensor(random(40, 64, dtype=BFLOAT16, seed=1), BFLOAT16)
    clean = linear(x, weight)
    x[3, 5], x[4, 6] = torch.nan, torch.inf
    dirty = linear(x, weight)
    assert bool(dirty[3].isnan().all())
    assert not bool(dirty[4].isfinite().any())
    others = [0, 1, 2, 5, 6, 7, 8]
    assert torch.equal(dirty[others], clean[others])


def test_several_callers_at_once_get_the_bits_of_one():
    """One of them has the help of the worker threads; the others work alone."""
    x = random(64, 300, dtype=BFLOAT16)
    weight = Dense.from_tensor(random(200, 300, dtype=BFLOAT16, seed=1), BFLOAT16)
    expected = linear(x, weight)
    with ThreadPoolExecutor(4) as callers:
        results = list(callers.map(lambda _: linear(x, weight), range(400)))
    assert all(torch.equal(result, expected) for result in results)


def test_without_packing_the_reference_gives_the_same_values():
    x, w = random(11, 96, dtype=BFLOAT16), random(40, 96, dtype=BFLOAT16, seed=1)
    plain = Dense(w, (40, 96), BFLOAT16, packed=False)
    torch.testing.assert_close(
        linear(x, plain, out_dtype=FLOAT32), linear(x, Dense.from_tensor(w, BFLOAT16), out_dtype=FLOAT32)
    )
    assert linear(x, plain).dtype is BFLOAT16
    assert linear(x, plain).shape == (11, 40)
