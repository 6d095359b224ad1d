"""Paged attention on the CPU: time a call, and the KV bytes it reads against what the memory gives.

Each cache type computes the same rows, layer after layer, in turns with the others and with a plain read of memory, so
that what else runs on the machine disturbs all alike. Times are the smallest and the median of all calls.

    python benchmarks/attention.py [--kv-cache-dtypes bfloat16 ...] [--case decode-64x320 ...]
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from pelton.formats.memory import huge_page_bytes
from pelton.ops.attention import paged_attention
from pelton.ops.kv import page_bytes, view_kv
from pelton.ops.rope import write_kv

PAGE_SIZE = 16
CACHE_BYTES = 256 * 2**20  # the layers of a case together, so that none is still in a processor's cache
MAX_LAYERS = 30
PROBE_BYTES = 256 * 2**20
DTYPES = {
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
    "float32": torch.float32,
}


@dataclass(frozen=True, slots=True)
class HeadShape:
    name: str
    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Case:
    """`num_rows` rows that each compute their last `num_tokens` tokens over `context` keys."""

    name: str
    num_rows: int
    num_tokens: int
    context: int


SHAPES = (HeadShape("SmolLM2-135M", 9, 3, 64), HeadShape("Llama-3.2-1B", 32, 8, 64))
CASES = (
    *(
        Case(f"decode-{rows}x{context}", rows, 1, context)
        for rows, context in itertools.product((1, 8, 64), (64, 320, 2048))
    ),
    *(Case(f"prefill-{tokens}", 1, tokens, tokens) for tokens in (256, 512, 2048)),
)


def layer_calls(shape: HeadShape, case: Case, dtype: torch.dtype) -> tuple[list[Callable[[], object]], int]:
    """A call of the op a layer, and the bytes of keys and values that one call reads at least once."""
    pages_per_row = -(-case.context // PAGE_SIZE)
    num_pages = case.num_rows * pages_per_row
    row_starts = torch.arange(case.num_rows + 1, dtype=torch.int32) * case.num_tokens
    context_lens = torch.full((case.num_rows,), case.context, dtype=torch.int32)
    page_table = torch.randperm(num_pages, dtype=torch.int32).view(case.num_rows, pages_per_row)
    query = torch.randn(case.num_rows * case.num_tokens, shape.num_heads, shape.head_dim).to(torch.bfloat16)
    token_bytes = page_bytes(shape.num_kv_heads, 1, shape.head_dim, dtype)
    read_bytes = case.num_rows * case.context * token_bytes
    calls: list[Callable[[], object]] = []
    for _ in range(max(1, min(MAX_LAYERS, CACHE_BYTES // read_bytes + 1))):
        memory = huge_page_bytes(num_pages * PAGE_SIZE * token_bytes)
        kv = view_kv(memory, shape.num_kv_heads, PAGE_SIZE, shape.head_dim, dtype)
        slots = torch.arange(num_pages * PAGE_SIZE)
        key, value = torch.randn(2, len(slots), shape.num_kv_heads, shape.head_dim).to(torch.bfloat16)
        write_kv(key, value, kv, slots)
        arguments = (query, kv, row_starts, context_lens, page_table)
        calls.append(lambda arguments=arguments: paged_attention(*arguments, scale=0.125))
    return calls, read_bytes


def seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def measure(shape: HeadShape, case: Case, dtypes: list[str], num_rounds: int, probe: Callable[[], object]) -> None:
    variants = {name: layer_calls(shape, case, DTYPES[name]) for name in dtypes}
    times: dict[str, list[float]] = {name: [] for name in (*dtypes, "probe")}
    for _ in range(num_rounds):
        for name, (calls, _) in variants.items():
            times[name] += map(seconds, calls)
        times["probe"].append(seconds(probe))
    bandwidth = PROBE_BYTES / min(times["probe"])
    for name, (_, read_bytes) in variants.items():
        best, median = min(times[name]), statistics.median(times[name])
        products = 4 * shape.num_heads * shape.head_dim * case.num_rows * case.num_tokens * case.context
        flops = products / (2 if case.num_tokens > 1 else 1)  # causal: half of the keys of a prompt
        print(
            f"{shape.name:13} {case.name:15} {name:9} {best * 1e6:9.1f} us (median {median * 1e6:9.1f}) "
            f"{read_bytes / best / 1e9:6.1f} GB/s, {read_bytes / best / bandwidth:5.2f} of {bandwidth / 1e9:.1f}; "
            f"{flops / best / 1e9:6.1f} Gflop/s"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kv-cache-dtypes", nargs="+", default=list(DTYPES), choices=list(DTYPES))
    parser.add_argument("--case", nargs="+", default=[case.name for case in CASES])
    parser.add_argument("--shape", nargs="+", default=[shape.name for shape in SHAPES])
    parser.add_argument("--threads", type=int, help="all cores by default")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    memory = huge_page_bytes(PROBE_BYTES).fill_(1)
    for shape, case in itertools.product(SHAPES, CASES):
        if shape.name in options.shape and case.name in options.case:
            measure(shape, case, options.kv_cache_dtypes, options.rounds, memory.amax)


if __name__ == "__main__":
    main()
