"""Rotary embedding against transformers' Llama, and what KV writes put where."""

import math

import pytest
import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from instruction_sets import under
from ops.paged_batches import paged_batch
from pelton.kernels.cpu import extension
from pelton.ops.kv import KVCache, page_bytes, view_kv
from pelton.ops.reference_attention import gather_row, reference_rope_and_cache, reference_write_kv
from pelton.ops.rope import cpu_rope_and_cache, rope_and_cache, write_kv

BFLOAT16, FLOAT32, INT8, FLOAT8 = torch.bfloat16, torch.float32, torch.int8, torch.float8_e4m3fn
NUM_PAGES, NUM_TOKENS, HEADS, KV_HEADS, PAGE_SIZE = 7, 53, 6, 2, 16
SENTINEL = 0x9D


def angles(rotary_dim: int, num_positions: int = 200) -> torch.Tensor:
    frequencies = 10000.0 ** -(torch.arange(0, rotary_dim, 2) / rotary_dim)
    phases = torch.arange(num_positions)[:, None] * frequencies
    return torch.cat([phases.cos(), phases.sin()], dim=1)


def packed_heads(head_dim: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Query, key and value as views of one projection."""
    generator = torch.Generator().manual_seed(1)
    packed = torch.randn(NUM_TOKENS, (HEADS + 2 * KV_HEADS) * head_dim, generator=generator).to(dtype)
    parts = packed.split([HEADS * head_dim, KV_HEADS * head_dim, KV_HEADS * head_dim], dim=1)
    query, key, value = (part.unflatten(1, (-1, head_dim)) for part in parts)
    return query, key, value


def sentinel_cache(head_dim: int, dtype: torch.dtype) -> tuple[KVCache, torch.Tensor]:
    """A cache and its memory, every byte of which is SENTINEL."""
    num_bytes = NUM_PAGES * page_bytes(KV_HEADS, PAGE_SIZE, head_dim, dtype)
    memory = torch.full((num_bytes,), SENTINEL, dtype=torch.uint8)
    return view_kv(memory, KV_HEADS, PAGE_SIZE, head_dim, dtype), memory


def shuffled_slots() -> torch.Tensor:
    """Slots for the tokens, every fifth of which is not cached."""
    slots = torch.randperm(NUM_PAGES * PAGE_SIZE, generator=torch.Generator().manual_seed(2))[:NUM_TOKENS]
    slots[::5] = -1
    return slots


def test_reference_rotates_as_transformers_does() -> None:
    head_dim = 64
    query, key, value = packed_heads(head_dim, FLOAT32)
    table, positions = angles(head_dim), torch.arange(NUM_TOKENS) * 3
    cos, sin = (half[positions].repeat(1, 2)[None] for half in table.split(head_dim // 2, dim=1))
    expected_query, expected_key = apply_rotary_pos_emb(
        query[None].transpose(1, 2), key[None].transpose(1, 2), cos, sin
    )
    kv, _ = sentinel_cache(head_dim, FLOAT32)
    actual = reference_rope_and_cache(query, key, value, table, positions, kv, torch.arange(NUM_TOKENS))
    torch.testing.assert_close(actual, expected_query[0].transpose(0, 1))
    keys, values = gather_row(kv, torch.arange(NUM_PAGES), NUM_TOKENS)
    torch.testing.assert_close(keys, expected_key[0].transpose(0, 1))
    torch.testing.assert_close(values, value)


@pytest.mark.skipif(extension is None, reason="the CPU kernels are not built")
@under("portable", "avx2", "avx512")
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
@pytest.mark.parametrize("cache_dtype", [FLOAT32, BFLOAT16, INT8, FLOAT8])
@pytest.mark.parametrize(
    ("head_dim", "rotary_dim"), [(64, 64), (64, 32), (48, 48), (16, 16), (80, 20), (128, 126), (256, 256)]
)
def test_kernel_equals_the_reference(
    instruction_set: str, dtype: torch.dtype, cache_dtype: torch.dtype, head_dim: int, rotary_dim: int
) -> None:
    heads, table = packed_heads(head_dim, dtype), angles(rotary_dim)
    positions, slots = torch.arange(NUM_TOKENS) * 3, shuffled_slots()
    (expected_kv, expected_memory), (kv, memory) = (sentinel_cache(head_dim, cache_dtype) for _ in range(2))
    expected = reference_rope_and_cache(*heads, table, positions, expected_kv, slots)
    actual = cpu_rope_and_cache(*heads, table, positions, kv, slots)
    assert actual.dtype == dtype
    assert torch.equal(actual, expected)
    assert torch.equal(memory, expected_memory)
    assert (memory != SENTINEL).any()


@pytest.mark.parametrize("write", [write_kv, reference_write_kv])
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
@pytest.mark.parametrize("cache_dtype", [FLOAT32, BFLOAT16])
def test_a_slot_is_a_page_and_an_offset(write, dtype: torch.dtype, cache_dtype: torch.dtype) -> None:
    _, key, value = packed_heads(32, dtype)
    kv, memory = sentinel_cache(32, cache_dtype)
    untouched = memory.view(cache_dtype)[0].item()
    slots = shuffled_slots()
    write(key, value, kv, slots)
    width, written = 4 // cache_dtype.itemsize, 0
    for token, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        page, offset = divmod(slot, PAGE_SIZE)
        for d in (0, 1, 7, 31):
            assert torch.equal(kv.keys[page, :, d // width, offset, d % width], key[token, :, d].to(cache_dtype))
        cached = kv.values[page, :, offset // width, :, offset % width]
        assert torch.equal(cached, value[token].to(cache_dtype))
        written += KV_HEADS * 32
    assert (kv.keys != untouched).sum() == written
    assert (kv.values != untouched).sum() == written


@pytest.mark.parametrize("write", [write_kv, reference_write_kv])
@pytest.mark.parametrize("cache_dtype", [INT8, FLOAT8])
def test_8_bits_and_a_scale_are_near_what_was_written(write, cache_dtype: torch.dtype) -> None:
    _, key, value = packed_heads(64, FLOAT32)
    key[3] *= 1e-3
    value[4] *= 1e4
    kv, memory = sentinel_cache(64, cache_dtype)
    write(key, value, kv, shuffled_slots())
    for token, slot in enumerate(shuffled_slots().tolist()):
        if slot < 0:
            continue
        for stored, source in zip(
            gather_row(kv, torch.tensor([slot // PAGE_SIZE]), PAGE_SIZE), (key, value), strict=True
        ):
            error, largest = (
                (stored[slot % PAGE_SIZE] - source[token]).abs(),
                source[token].abs().amax(-1, keepdim=True),
            )
            if cache_dtype is INT8:
                assert (error <= largest / 127 * 0.501).all()
            else:  # 3 bits of mantissa, down to 2^-6 where the largest magnitude is 448
                assert (error <= torch.maximum(source[token].abs() * 2**-4, largest / 448 * 2**-6) * 1.001).all()
    touched = (memory.view(NUM_PAGES, -1) != SENTINEL).sum()
    num_written = int((shuffled_slots() >= 0).sum())
    assert 0.95 * num_written < touched / (2 * KV_HEADS * (64 + 4)) <= num_written


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
@pytest.mark.parametrize("cache_dtype", [BFLOAT16, INT8])
def test_a_layer_may_be_a_slice_of_a_larger_cache(dtype: torch.dtype, cache_dtype: torch.dtype) -> None:
    _, key, value = packed_heads(32, dtype)
    layer_bytes = page_bytes(KV_HEADS, PAGE_SIZE, 32, cache_dtype)
    memory = torch.full((NUM_PAGES, 2, layer_bytes), SENTINEL, dtype=torch.uint8)
    alone, _ = sentinel_cache(32, cache_dtype)
    # The second layer's part of each page.
    every = view_kv(memory, KV_HEADS, PAGE_SIZE, 32, cache_dtype)
    parts = (every.keys, every.values, every.key_scales, every.value_scales)
    sliced = KVCache(*(None if part is None else part[1::2] for part in parts))
    write_kv(key, value, sliced, torch.arange(NUM_TOKENS))
    write_kv(key, value, alone, torch.arange(NUM_TOKENS))
    row = torch.arange(NUM_PAGES), NUM_TOKENS
    assert all(torch.equal(*pair) for pair in zip(gather_row(sliced, *row), gather_row(alone, *row), strict=True))
    assert (memory[:, 0] == SENTINEL).all()


def test_no_tokens_change_nothing() -> None:
    heads, (kv, memory) = [part[:0] for part in packed_heads(64, BFLOAT16)], sentinel_cache(64, BFLOAT16)
    none = torch.empty(0, dtype=torch.int64)
    assert rope_and_cache(*heads, angles(64), none, kv, none).shape == (0, HEADS, 64)
    assert (memory == SENTINEL).all()


@pytest.mark.parametrize(("source", "expected"), [(math.nan, math.nan), (math.inf, math.inf), (1e-40, 1e-40)])
def test_special_values_reach_the_cache(source: float, expected: float) -> None:
    _, key, value = packed_heads(32, FLOAT32)
    key[3, 0, 0] = value[3, 0, 0] = source
    kv, _ = sentinel_cache(32, BFLOAT16)
    write_kv(key, value, kv, torch.arange(NUM_TOKENS))
    rounded = torch.tensor(expected).to(BFLOAT16)
    torch.testing.assert_close(kv.keys[0, 0, 0, 3, 0], rounded, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(kv.values[0, 0, 1, 0, 1], rounded, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("write", [write_kv, reference_write_kv])
@pytest.mark.parametrize("cache_dtype", [INT8, FLOAT8])
def test_special_values_reach_a_cache_of_8_bits(write, cache_dtype: torch.dtype) -> None:
    _, key, value = packed_heads(32, FLOAT32)
    key[3, 0, 5], value[4, 1, 7], key[5], value[6] = math.nan, math.inf, 0.0, 1e-40
    kv, _ = sentinel_cache(32, cache_dtype)
    write(key, value, kv, torch.arange(NUM_TOKENS))
    keys, values = gather_row(kv, torch.arange(NUM_PAGES), NUM_TOKENS)
    assert keys[3, 0].isnan().all()
    assert not values[4, 1].isfinite().any()
    assert (keys[5] == 0).all()
    assert (values[6] == 0).all()
    assert keys[[0, 1, 2, 4]].isfinite().all()


def test_batches_of_the_attention_tests_hold_what_was_written() -> None:
    batch = paged_batch([(3, 40), (1, 17)], cache_dtype=BFLOAT16)
    for row, context in enumerate(batch.context_lens.tolist()):
        keys, values = gather_row(batch.kv, batch.page_table[row], context)
        assert torch.equal(keys, batch.keys[row].float())
        assert torch.equal(values, batch.values[row].float())
