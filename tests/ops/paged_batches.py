"""Random paged batches for tests of attention and KV writes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pelton.ops.kv import KVCache, allocate_kv
from pelton.ops.reference_attention import gather_row
from pelton.ops.rope import write_kv


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """Rows over a cache whose unused slots are NaN, or garbage with NaN for a scale.

    `keys` and `values` are each row's as the cache's type has them, [context, K, D].
    """

    query: Tensor
    kv: KVCache
    row_starts: Tensor
    context_lens: Tensor
    page_table: Tensor
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    def arguments(self) -> tuple[Tensor, KVCache, Tensor, Tensor, Tensor]:
        return (
            self.query,
            self.kv,
            self.row_starts,
            self.context_lens,
            self.page_table,
        )

    def part(self, pieces: Sequence[tuple[int, int, int]]) -> "PagedBatch":
        """A batch of rows (row, begin, end): tokens begin..end of each, counted in that row's tokens here."""
        starts, contexts = self.row_starts.tolist(), self.context_lens.tolist()
        tokens = [torch.arange(starts[row] + begin, starts[row] + end) for row, begin, end in pieces]
        ends = [contexts[row] - (starts[row + 1] - starts[row]) + end for row, _, end in pieces]
        return replace(
            self,
            query=self.query[torch.cat(tokens)],
            row_starts=int32([0] + [end - begin for _, begin, end in pieces]).cumsum(0, dtype=torch.int32),
            context_lens=int32(ends),
            page_table=self.page_table[[row for row, _, _ in pieces]],
        )


def int32(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def paged_batch(
    rows: Sequence[tuple[int, int]],
    *,
    num_heads: int = 6,
    num_kv_heads: int = 2,
    head_dim: int = 64,
    page_size: int = 16,
    query_dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype = torch.float32,
    magnitude: float = 1.0,
    seed: int = 0,
) -> PagedBatch:
    """Rows are (num_tokens, context_len)."""
    generator = torch.Generator().manual_seed(seed)
    pages = [-(-context // page_size) for _, context in rows]
    num_pages = sum(pages) + 1
    shuffled = torch.randperm(num_pages, generator=torch.Generator().manual_seed(seed + page_size), dtype=torch.int32)
    kv = allocate_kv(num_pages, num_kv_heads, page_size, head_dim, cache_dtype, "cpu")
    for part in (kv.keys, kv.values):
        part.fill_(torch.nan) if kv.key_scales is None else part.view(torch.int8).fill_(0x7F)
    for scales in (kv.key_scales, kv.value_scales):
        if scales is not None:
            scales.fill_(torch.nan)
    page_table = torch.full((len(rows), max(pages)), 2**30, dtype=torch.int32)
    keys, values = [], []
    for row, (_, context) in enumerate(rows):
        page_table[row, : pages[row]] = shuffled[sum(pages[:row]) : sum(pages[: row + 1])]
        key, value = (torch.randn(context, num_kv_heads, head_dim, generator=generator) * magnitude for _ in range(2))
        positions = torch.arange(context)
        slots = page_table[row, positions // page_size].long() * page_size + positions % page_size
        write_kv(key, value, kv, slots)
        scaled = kv.key_scales is not None
        as_stored = gather_row(kv, page_table[row], context) if scaled else (key.to(cache_dtype), value.to(cache_dtype))
        keys.append(as_stored[0])
        values.append(as_stored[1])
    num_tokens = sum(count for count, _ in rows)
    query = torch.randn(num_tokens, num_heads, head_dim, generator=generator) * magnitude
    return PagedBatch(
        query.to(query_dtype),
        kv,
        int32([0] + [count for count, _ in rows]).cumsum(0, dtype=torch.int32),
        int32([context for _, context in rows]),
        page_table,
        tuple(keys),
        tuple(values),
    )
