"""Speed of matrix products in every weight format, as fractions of what this machine's cores can do at most.

    python benchmarks/products.py [--threads N] [--rows 1,16,64] [--formats int8,Q4_1] [--shapes 576x3072]

For each shape (inputs x outputs) and number of rows it prints microseconds, 10^9 operations a second as a share of the
peak of the instructions used (VNNI, or BF16 for dense weights), and the speed at which weights are read as a share of
memory's. Formats take turns within one run and the shortest time counts: neighbours and frequency drift hit them alike.
Weights of a small model stay in the caches from call to call, so shares above 100 % of memory are possible.
"""

import argparse
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from pelton.formats.dense import Dense
from pelton.formats.gguf import GGUFTensor
from pelton.formats.grouped import GroupedAffine
from pelton.formats.int8 import Int8
from pelton.formats.weight import Weight, multiply

BLOCK_BYTES = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}
FORMATS = ("bf16", "int8", "int4", *BLOCK_BYTES)
# Inputs x outputs of SmolLM2-135M (qkv, o, gate and up, down, head) and of Llama-3.2-1B.
SHAPES = "576x960,576x576,576x3072,1536x576,576x49152,2048x3072,2048x2048,2048x16384,8192x2048"
SECONDS_PER_FORMAT = 0.3
MAX_REPETITIONS = 500


@dataclass(frozen=True, slots=True)
class Peak:
    """Operations a second by instruction set and bytes read a second, of all threads; see peak.cpp."""

    vnni: float
    bf16: float
    memory: float


def measure_peak(num_threads: int) -> Peak:
    source = Path(__file__).with_name("peak.cpp")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "peak"
        subprocess.run(
            ["g++", "-O3", "-march=native", "-std=c++20", "-pthread", str(source), "-o", str(program)], check=True
        )
        output = subprocess.run([program, str(num_threads)], check=True, capture_output=True, text=True).stdout
    return Peak(*map(float, output.split()))


def make_weight(name: str, num_outputs: int, num_inputs: int) -> Weight:
    if name in BLOCK_BYTES:
        blocks = torch.randint(0, 256, (num_outputs * num_inputs // 32, BLOCK_BYTES[name]), dtype=torch.uint8)
        blocks.view(torch.float16)[:, :2] = 0.01
        return GroupedAffine.from_gguf([GGUFTensor(blocks.view(-1), name, (num_outputs, num_inputs))], torch.bfloat16)
    plain = torch.randn(num_outputs, num_inputs, dtype=torch.bfloat16)
    makers: dict[str, Callable[[], Weight]] = {
        "bf16": lambda: Dense.from_tensor(plain, torch.bfloat16),
        "int8": lambda: Int8.quantize([plain], torch.bfloat16),
        "int4": lambda: GroupedAffine.quantize([plain], torch.bfloat16),
    }
    return makers[name]()


def shortest_times(weights: dict[str, Weight], num_rows: int, num_inputs: int, num_outputs: int) -> dict[str, float]:
    """Seconds of the fastest of many calls, by format."""
    x = torch.randn(num_rows, num_inputs, dtype=torch.bfloat16)
    out = torch.empty(num_rows, num_outputs, dtype=torch.bfloat16)
    best = dict.fromkeys(weights, float("inf"))
    deadline = time.perf_counter() + SECONDS_PER_FORMAT * len(weights)
    for _ in range(MAX_REPETITIONS):
        for name, weight in weights.items():
            start = time.perf_counter()
            multiply(x, weight, None, out)
            best[name] = min(best[name], time.perf_counter() - start)
        if time.perf_counter() > deadline:
            break
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rows", default="1,2,4,8,16,32,64,256")
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--shapes", default=SHAPES)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    peak = measure_peak(arguments.threads)
    print(
        f"peak of {arguments.threads} threads: VNNI {peak.vnni / 1e9:.0f}, BF16 {peak.bf16 / 1e9:.0f} GOP/s, "
        f"memory {peak.memory / 1e9:.1f} GB/s"
    )
    print(" inputs outputs  rows format        us   GOP/s  peak   GB/s memory")
    for shape in arguments.shapes.split(","):
        num_inputs, num_outputs = map(int, shape.split("x"))
        weights = {name: make_weight(name, num_outputs, num_inputs) for name in arguments.formats.split(",")}
        for num_rows in map(int, arguments.rows.split(",")):
            for name, seconds in shortest_times(weights, num_rows, num_inputs, num_outputs).items():
                rate = 2 * num_rows * num_inputs * num_outputs / seconds
                read = weights[name].nbytes / seconds
                share = rate / (peak.bf16 if name == "bf16" else peak.vnni)
                print(
                    f"{num_inputs:7} {num_outputs:7} {num_rows:5} {name:>6} {seconds * 1e6:9.1f} {rate / 1e9:7.0f} "
                    f"{share:5.0%} {read / 1e9:6.1f} {read / peak.memory:6.0%}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
