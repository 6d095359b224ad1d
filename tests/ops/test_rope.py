"""Rotary embedding against transformers' Llama, and what KV writes put where."""

import math

import pytest
import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from instruction_sets import under
from ops.paged_batches import paged_batch
from pelton.kernels.cpu import extension
from pelton.ops.kv import allocate_kv, write_kv
from pelton.ops.reference_attention import gather_row, reference_rope_and_cache, reference_write_kv
from pelton.ops.rope import cpu_rope_and_cache, rope_and_cache

BFLOAT16, FLOAT32 = torch.bfloat16, torch.float32
NUM_PAGES, NUM_TOKENS, HEADS, KV_HEADS, PAGE_SIZE = 7, 53, 6, 2, 16
SENTINEL = -123.0


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


def sentinel_cache(head_dim: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    caches = allocate_kv(NUM_PAGES, KV_HEADS, PAGE_SIZE, head_dim, dtype, "cpu")
    for cache in caches:
        cache.fill_(SENTINEL)
    return caches


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
    caches = sentinel_cache(head_dim, FLOAT32)
    actual = reference_rope_and_cache(query, key, value, table, positions, *caches, torch.arange(NUM_TOKENS))
    torch.testing.assert_close(actual, expected_query[0].transpose(0, 1))
    keys, values = gather_row(*caches, torch.arange(NUM_PAGES), NUM_TOKENS)
    torch.testing.assert_close(keys, expected_key[0].transpose(0, 1))
    torch.testing.assert_close(values, value)


@pytest.mark.skipif(extension is None, reason="the CPU kernels are not built")
@under("portable", "avx2", "avx512")
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
@pytest.mark.parametrize("cache_dtype", [FLOAT32, BFLOAT16])
@pytest.mark.parametrize(
    ("head_dim", "rotary_dim"), [(64, 64), (64, 32), (48, 48), (16, 16), (80, 20), (128, 126), (256, 256)]
)
def test_kernel_equals_the_reference(
    instruction_set: str, dtype: torch.dtype, cache_dtype: torch.dtype, head_dim: int, rotary_dim: int
) -> None:
    heads, table = packed_heads(head_dim, dtype), angles(rotary_dim)
    positions, slots = torch.arange(NUM_TOKENS) * 3, shuffled_slots()
    expected_caches, actual_caches = sentinel_cache(head_dim, cache_dtype), sentinel_cache(head_dim, cache_dtype)
    expected = reference_rope_and_cache(*heads, table, positions, *expected_caches, slots)
    actual = cpu_rope_and_cache(*heads, table, positions, *actual_caches, slots)
    assert actual.dtype == dtype
    assert torch.equal(actual, expected)
    assert torch.equal(actual_caches[0], expected_caches[0])
    assert torch.equal(actual_caches[1], expected_caches[1])


@pytest.mark.parametrize("write", [write_kv, reference_write_kv])
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
@pytest.mark.parametrize("cache_dtype", [FLOAT32, BFLOAT16])
def test_a_slot_is_a_page_and_an_offset(write, dtype: torch.dtype, cache_dtype: torch.dtype) -> None:
    _, key, value = packed_heads(32, dtype)
    key_cache, value_cache = sentinel_cache(32, cache_dtype)
    slots = shuffled_slots()
    write(key, value, key_cache, value_cache, slots)
    width, written = 4 // cache_dtype.itemsize, 0
    for token, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        page, offset = divmod(slot, PAGE_SIZE)
        for d in (0, 1, 7, 31):
            assert torch.equal(key_cache[page, :, d // width, offset, d % width], key[token, :, d].to(cache_dtype))
        cached = value_cache[page, :, offset // width, :, offset % width]
        assert torch.equal(cached, value[token].to(cache_dtype))
        written += KV_HEADS * 32
    assert (key_cache != SENTINEL).sum() == written
    assert (value_cache != SENTINEL).sum() == written


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
def test_a_layer_may_be_a_slice_of_a_larger_cache(dtype: torch.dtype) -> None:
    _, key, value = packed_heads(32, dtype)
    whole = tuple(torch.stack([cache, cache], dim=1) for cache in sentinel_cache(32, dtype))
    write_kv(key, value, whole[0][:, 1], whole[1][:, 1], torch.arange(NUM_TOKENS))
    keys, values = gather_row(whole[0][:, 1], whole[1][:, 1], torch.arange(NUM_PAGES), NUM_TOKENS)
    assert torch.equal(keys, key.float())
    assert torch.equal(values, value.float())
    assert (whole[0][:, 0] == SENTINEL).all()
    assert (whole[1][:, 0] == SENTINEL).all()


def test_no_tokens_change_nothing() -> None:
    heads, caches = [part[:0] for part in packed_heads(64, BFLOAT16)], sentinel_cache(64, BFLOAT16)
    none = torch.empty(0, dtype=torch.int64)
    assert rope_and_cache(*heads, angles(64), none, *caches, none).shape == (0, HEADS, 64)
    assert all((cache == SENTINEL).all() for cache in caches)


@pytest.mark.parametrize(("source", "expected"), [(math.nan, math.nan), (math.inf, math.inf), (1e-40, 1e-40)])
def test_special_values_reach_the_cache(source: float, expected: float) -> None:
    _, key, value = packed_heads(32, FLOAT32)
    key[3, 0, 0] = value[3, 0, 0] = source
    key_cache, value_cache = sentinel_cache(32, BFLOAT16)
    write_kv(key, value, key_cache, value_cache, torch.arange(NUM_TOKENS))
    rounded = torch.tensor(expected).to(BFLOAT16)
    torch.testing.assert_close(key_cache[0, 0, 0, 3, 0], rounded, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(value_cache[0, 0, 1, 0, 1], rounded, rtol=0, atol=0, equal_nan=True)


def test_batches_of_the_attention_tests_hold_what_was_written() -> None:
    batch = paged_batch([(3, 40), (1, 17)], cache_dtype=BFLOAT16)
    for row, context in enumerate(batch.context_lens.tolist()):
        keys, values = gather_row(batch.key_cache, batch.value_cache, batch.page_table[row], context)
        assert torch.equal(keys, batch.keys[row].float())
        assert torch.equal(values, batch.values[row].float())
