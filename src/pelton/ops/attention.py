"""Paged attention over a step's rows, prefill and decode alike.

R rows, T packed tokens, H query heads, K KV heads (H is a multiple), D head size, P pages, S tokens of a page.
"""

import torch
from torch import Tensor

from pelton.kernels.cpu import ELEMENT_TYPES, extension
from pelton.ops.kv import CACHE_TYPES, KVCache, head_strides, runs_on_cpu_kernel
from pelton.ops.reference_attention import reference_paged_attention

_NO_WINDOW = 2**30  # csrc/attention.h


def paged_attention(
    query: Tensor,
    kv: KVCache,
    row_starts: Tensor,
    context_lens: Tensor,
    page_table: Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float = 0.0,
    out: Tensor | None = None,
) -> Tensor:
    """Causal softmax attention of each token over its row's cached keys, its own among them.

    Row r owns tokens row_starts[r]:row_starts[r + 1]. Token i of its n stands at position context_lens[r] - n + i.
    On a CPU kernel a token's result does not depend on the tokens and rows beside it, nor on the number of threads.

    Args:
        query: [T, H, D], fp32 or bf16, any strides over T and H, none over D.
        kv: see ops/kv.py; of any type, whatever the query is.
        row_starts: [R + 1] int32.
        context_lens: [R] int32, keys visible to the row's last token.
        page_table: [R, max_pages] int32, each row's pages in order of position; entries past its context are ignored.
        scale: factor of the scores.
        window: a token at position p sees key j if p - j < window; None sees all.
        softcap: scores become softcap * tanh(score / softcap) (Gemma 2, arXiv 2408.00118, section 2); 0 leaves them.
        out: [T, H, D] contiguous, of the query's type, to write to; a new tensor by default.

    Returns:
        [T, H, D] of the query's type, contiguous; `out` where it is given.
    """
    if runs_on_cpu_kernel(query, kv):
        return cpu_paged_attention(query, kv, row_starts, context_lens, page_table, scale, window, softcap, out=out)
    mixed = reference_paged_attention(query, kv, row_starts, context_lens, page_table, scale, window, softcap)
    return mixed if out is None else out.copy_(mixed)


def cpu_paged_attention(
    query: Tensor,
    kv: KVCache,
    row_starts: Tensor,
    context_lens: Tensor,
    page_table: Tensor,
    scale: float,
    window: int | None,
    softcap: float,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """`paged_attention` in csrc."""
    assert extension is not None
    num_tokens, num_heads, head_dim = query.shape
    row_stride, entry_stride = page_table.stride()
    assert entry_stride == 1
    if out is None:
        out = torch.empty((num_tokens, num_heads, head_dim), dtype=query.dtype)
    extension.paged_attention(
        query.data_ptr(),
        out.data_ptr(),
        *kv.addresses(),
        row_starts.data_ptr(),
        context_lens.data_ptr(),
        page_table.data_ptr(),
        context_lens.shape[0],
        num_heads,
        kv.num_kv_heads,
        head_dim,
        kv.page_size,
        row_stride,
        *head_strides(query),
        *kv.page_strides(),
        ELEMENT_TYPES[query.dtype],
        CACHE_TYPES[kv.dtype],
        scale,
        softcap,
        _NO_WINDOW if window is None else min(window, _NO_WINDOW),
    )
    return out
