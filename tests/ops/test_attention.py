"""Paged attention: against torch's own attention, between instruction sets, and bit for bit under any batching."""

import math
from collections.abc import Iterator
from itertools import product

import pytest
import torch

from instruction_sets import available, under
from ops.paged_batches import PagedBatch, int32, paged_batch
from pelton.kernels.cpu import extension
from pelton.ops.attention import cpu_paged_attention, paged_attention
from pelton.ops.kv import allocate_kv
from pelton.ops.reference_attention import reference_paged_attention

BFLOAT16, FLOAT32, INT8, FLOAT8 = torch.bfloat16, torch.float32, torch.int8, torch.float8_e4m3fn
MIXED_ROWS = [(37, 100), (1, 1), (1, 16), (1, 17), (1, 700), (3, 260), (150, 150)]
QUERY_TYPES, CACHE_TYPES = (FLOAT32, BFLOAT16), (FLOAT32, BFLOAT16, INT8, FLOAT8)
# These kernels round the weights, and the queries over int8, to bf16 or to 16-bit integers.
OF_BETTER_SETS = (
    ("avx512_vnni_bf16", BFLOAT16, BFLOAT16),
    ("avx512_vnni_bf16", BFLOAT16, FLOAT8),
    ("avx512_vnni_bf16", BFLOAT16, INT8),
    ("avx512_vnni_bf16", FLOAT32, INT8),
    ("amx", BFLOAT16, BFLOAT16),
)
needs_extension = pytest.mark.skipif(extension is None, reason="the CPU kernels are not built")


Kernel = tuple[str, torch.dtype, torch.dtype]  # instruction set, type of the query, type of the cache


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """torch's own operations would fork for each of the many small tensors here."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


INSTRUCTION_SETS = "portable", "avx2", "avx512", "avx512_vnni_bf16", "amx"  # those with kernels of their own
EACH_INSTRUCTION_SET = under(*INSTRUCTION_SETS)


def kernels() -> list[Kernel]:
    """Every kernel of this machine with the types that it takes."""
    every = [(name, *pair) for name in available(*INSTRUCTION_SETS) for pair in product(QUERY_TYPES, CACHE_TYPES)]
    return [kernel for kernel in every if kernel in OF_BETTER_SETS or kernel[0] not in ("avx512_vnni_bf16", "amx")]


EACH_KERNEL = pytest.mark.parametrize(
    ("instruction_set", "query_dtype", "cache_dtype"), kernels(), indirect=["instruction_set"]
)


def attend(batch: PagedBatch, scale: float = 0.125, window: int | None = None, softcap: float = 0.0) -> torch.Tensor:
    return cpu_paged_attention(*batch.arguments(), scale, window, softcap)


def dense_attention(batch: PagedBatch, scale: float, window: int | None, softcap: float) -> torch.Tensor:
    """Each row by itself in float64 from its unpaged keys, with torch's attention where that can do it."""
    starts, out = batch.row_starts.tolist(), []
    for row, (keys, values) in enumerate(zip(batch.keys, batch.values, strict=True)):
        query = batch.query[starts[row] : starts[row + 1]].double().transpose(0, 1)  # [H, n, D]
        group = query.shape[0] // keys.shape[1]
        key, value = (x.double().transpose(0, 1).repeat_interleave(group, 0) for x in (keys, values))
        distance = torch.arange(len(keys) - query.shape[1], len(keys))[:, None] - torch.arange(len(keys))
        mask = (distance >= 0) & (distance < (window or len(keys)))
        if softcap == 0:
            result = torch.nn.functional.scaled_dot_product_attention(query, key, value, mask, scale=scale)
        else:
            scores = softcap * torch.tanh(query @ key.transpose(1, 2) * scale / softcap)
            result = scores.masked_fill(~mask, -math.inf).softmax(-1) @ value
        out.append(result.transpose(0, 1))
    return torch.cat(out)


def assert_near(actual: torch.Tensor, expected: torch.Tensor, weight_error: float = 0.0) -> None:
    """To within fp32 arithmetic, one rounding of a bf16 result, and `weight_error` absolute."""
    relative = 2**-8 if actual.dtype == BFLOAT16 else 2e-5
    torch.testing.assert_close(actual.double(), expected.double(), rtol=relative, atol=2e-5 + weight_error)


def weight_error(instruction_set: str, batch: PagedBatch) -> float:
    """What rounding of weights can change: they add up to 1, each is off by up to 2^-9 in bf16.

    Over int8, 256 of them are off by up to 2^-16 of the largest, and the query by 2^-15 of its largest element.
    """
    if instruction_set not in ("avx512_vnni_bf16", "amx"):
        return 0.0
    largest = max(values.abs().max().item() for values in batch.values if len(values))
    return largest * (2**-11 if batch.kv.dtype is INT8 else 2**-9)


@pytest.mark.parametrize("cache_dtype", CACHE_TYPES)
@pytest.mark.parametrize(("window", "softcap"), [(None, 0.0), (5, 0.0), (300, 0.0), (None, 8.0), (40, 2.0)])
def test_reference_is_attention(cache_dtype: torch.dtype, window: int | None, softcap: float) -> None:
    batch = paged_batch(MIXED_ROWS, cache_dtype=cache_dtype)
    actual = reference_paged_attention(*batch.arguments(), 0.125, window, softcap)
    assert_near(actual, dense_attention(batch, 0.125, window, softcap))


@needs_extension
@EACH_KERNEL
@pytest.mark.parametrize(("window", "softcap"), [(None, 0.0), (5, 0.0), (300, 0.0), (40, 2.0)])
def test_kernel_is_attention(
    instruction_set: str, query_dtype: torch.dtype, cache_dtype: torch.dtype, window: int | None, softcap: float
) -> None:
    batch = paged_batch(MIXED_ROWS, query_dtype=query_dtype, cache_dtype=cache_dtype)
    actual = attend(batch, 0.125, window, softcap)
    expected = dense_attention(batch, 0.125, window, softcap)
    assert_near(actual, expected, weight_error(instruction_set, batch))


@needs_extension
@EACH_INSTRUCTION_SET
@pytest.mark.parametrize(
    ("dtype", "cache_dtype"), [(FLOAT32, FLOAT32), (BFLOAT16, BFLOAT16), (BFLOAT16, INT8), (BFLOAT16, FLOAT8)]
)
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim", "page_size"),
    [
        (4, 4, 16, 16),
        (9, 3, 48, 32),
        (8, 1, 80, 64),
        (14, 2, 64, 48),
        (16, 2, 96, 16),
        (71, 1, 64, 16),
        (3, 3, 256, 16),
        (2, 1, 576, 32),
    ],
)
def test_kernel_takes_every_shape(
    instruction_set: str,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    page_size: int,
) -> None:
    batch = paged_batch(
        [(19, 300), (1, 65), (2, 2)],
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        page_size=page_size,
        query_dtype=dtype,
        cache_dtype=cache_dtype,
    )
    scale = head_dim**-0.5
    actual = attend(batch, scale)
    assert_near(actual, dense_attention(batch, scale, None, 0.0), weight_error(instruction_set, batch))


@needs_extension
@EACH_KERNEL
@pytest.mark.parametrize(
    ("window", "softcap", "num_heads", "num_kv_heads"), [(None, 0.0, 9, 3), (5, 0.0, 2, 2), (270, 3.0, 10, 2)]
)
def test_a_token_does_not_depend_on_its_batch(
    instruction_set: str,
    query_dtype: torch.dtype,
    cache_dtype: torch.dtype,
    window: int | None,
    softcap: float,
    num_heads: int,
    num_kv_heads: int,
) -> None:
    rows = [(290, 290), (40, 300), (1, 530)]
    heads = {"num_heads": num_heads, "num_kv_heads": num_kv_heads}
    batch = paged_batch(rows, **heads, query_dtype=query_dtype, cache_dtype=cache_dtype)
    starts = batch.row_starts.tolist()

    def attend_with(num_threads: int, part: PagedBatch) -> torch.Tensor:
        torch.set_num_threads(num_threads)
        return attend(part, 0.125, window, softcap)

    together = attend_with(2, batch)
    assert torch.equal(together, attend_with(1, batch))
    for row, begin, end in chunks(rows):
        expected = together[starts[row] + begin : starts[row] + end]
        assert torch.equal(attend_with(2, batch.part([(row, begin, end)])), expected)
        # Neighbours before and behind, and with them another division of the work.
        between = batch.part([(2, 0, 1), (row, begin, end), (1, 3, 5)])
        assert torch.equal(attend_with(1, between)[1:-2], expected)


def chunks(rows: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Rows cut into chunks of several sizes, as (row, begin, end); of the small chunks a sample."""
    pieces = []
    for size, sample in ((1, 23), (7, 5), (16, 2), (64, 1), (290, 1)):
        for row, (num_tokens, _) in enumerate(rows):
            begins = range(0, num_tokens, size)[::sample]
            pieces += [(row, begin, min(begin + size, num_tokens)) for begin in begins]
    return pieces


@needs_extension
@EACH_INSTRUCTION_SET
@pytest.mark.parametrize("page_size", [32, 64])
@pytest.mark.parametrize("cache_dtype", [BFLOAT16, INT8, FLOAT8])
def test_placement_of_pages_changes_nothing(instruction_set: str, page_size: int, cache_dtype: torch.dtype) -> None:
    rows = [(50, 270), (1, 33)]
    expected, moved = (
        paged_batch(rows, page_size=size, query_dtype=BFLOAT16, cache_dtype=cache_dtype) for size in (16, page_size)
    )
    assert torch.equal(moved.keys[0], expected.keys[0])
    assert not torch.equal(moved.page_table[:, :1], expected.page_table[:, :1])
    results = [attend(batch) for batch in (expected, moved)]
    assert torch.equal(*results)


@needs_extension
@EACH_INSTRUCTION_SET
def test_rows_may_share_pages(instruction_set: str) -> None:
    batch = paged_batch([(40, 100)], cache_dtype=BFLOAT16, query_dtype=BFLOAT16)
    shared = batch.part([(0, 10, 30), (0, 10, 30), (0, 39, 40)])
    actual = attend(shared)
    whole = attend(batch)
    assert torch.equal(actual, torch.cat([whole[10:30], whole[10:30], whole[39:]]))


@needs_extension
@EACH_INSTRUCTION_SET
@pytest.mark.parametrize(("query_dtype", "cache_dtype"), [(FLOAT32, FLOAT32), (BFLOAT16, BFLOAT16), (BFLOAT16, INT8)])
def test_huge_scores_stay_finite(instruction_set: str, query_dtype: torch.dtype, cache_dtype: torch.dtype) -> None:
    batch = paged_batch([(20, 600), (1, 40)], magnitude=3e4, query_dtype=query_dtype, cache_dtype=cache_dtype)
    actual = attend(batch, 1.0)
    assert actual.isfinite().all()
    torch.testing.assert_close(actual.double(), dense_attention(batch, 1.0, None, 0.0), rtol=2**-8, atol=1.0)


@needs_extension
@EACH_INSTRUCTION_SET
@pytest.mark.parametrize("cache_dtype", [BFLOAT16, INT8, FLOAT8])
def test_not_a_number_is_not_hidden(instruction_set: str, cache_dtype: torch.dtype) -> None:
    batch = paged_batch([(1, 40), (1, 40)], query_dtype=BFLOAT16, cache_dtype=cache_dtype)
    batch.query[0, 0, 3] = math.nan
    actual = attend(batch, 1.0)
    assert actual[0, 0].isnan().all()
    assert actual[0, 1:].isfinite().all()
    assert actual[1].isfinite().all()


@needs_extension
@EACH_INSTRUCTION_SET
@pytest.mark.parametrize("query_dtype", [FLOAT32, BFLOAT16])
@pytest.mark.parametrize("head_dim", [16, 48, 64])
def test_kernel_writes_its_output_alone(instruction_set: str, query_dtype: torch.dtype, head_dim: int) -> None:
    batch = paged_batch([(9, 20), (1, 3)], query_dtype=query_dtype, cache_dtype=query_dtype, head_dim=head_dim)
    guarded = torch.full((12, 6, head_dim), -123.0, dtype=query_dtype)
    caches = batch.kv.keys.clone(), batch.kv.values.clone()
    cpu_paged_attention(*batch.arguments(), 0.125, None, 0.0, out=guarded[1:11])
    assert (guarded[[0, 11]] == -123.0).all()
    assert (guarded[1:11] != -123.0).all()
    torch.testing.assert_close(caches, (batch.kv.keys, batch.kv.values), rtol=0, atol=0, equal_nan=True)


@needs_extension
def test_query_may_be_a_view_of_a_packed_projection() -> None:
    batch = paged_batch([(9, 20)], query_dtype=BFLOAT16)
    packed = torch.full((9, 10 * 64), math.nan, dtype=BFLOAT16)
    view = packed[:, : 6 * 64].view(9, 6, 64)
    view.copy_(batch.query)
    assert not view.is_contiguous()
    actual = paged_attention(view, *batch.arguments()[1:], scale=0.125)
    assert torch.equal(actual, paged_attention(*batch.arguments(), scale=0.125))


@needs_extension
def test_rows_without_tokens_are_skipped() -> None:
    batch = paged_batch([(4, 20), (0, 0), (1, 8)])
    assert_near(paged_attention(*batch.arguments(), scale=0.125), dense_attention(batch, 0.125, None, 0.0))


def test_no_tokens_give_no_output() -> None:
    kv = allocate_kv(1, 2, 16, 64, FLOAT32, "cpu")
    empty = torch.empty(0, 6, 64)
    actual = paged_attention(empty, kv, int32([0]), int32([]), torch.empty(0, 1, dtype=torch.int32), scale=1.0)
    assert actual.shape == (0, 6, 64)


@pytest.mark.parametrize(
    ("head_dim", "page_size", "cache_dtype"), [(24, 16, FLOAT32), (64, 8, FLOAT32), (64, 16, torch.float16)]
)
def test_other_layouts_and_types_run_on_the_reference(head_dim: int, page_size: int, cache_dtype: torch.dtype) -> None:
    batch = paged_batch([(5, 30), (1, 9)], head_dim=head_dim, page_size=page_size, cache_dtype=cache_dtype)
    assert_near(paged_attention(*batch.arguments(), scale=0.2), dense_attention(batch, 0.2, None, 0.0))
