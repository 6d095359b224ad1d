"""Operations a second of a bf16 product of 2048 x 2048 x 2048 through torch (oneDNN), the best of several.

python gemm.py THREADS
"""

import sys
import time

import torch

SIZE = 2048
REPETITIONS = 10


def main() -> None:
    torch.set_num_threads(int(sys.argv[1]))
    left, right = (torch.randn(SIZE, SIZE).bfloat16() for _ in range(2))
    seconds: list[float] = []
    for _ in range(REPETITIONS):
        begun = time.perf_counter()
        torch.mm(left, right)
        seconds.append(time.perf_counter() - begun)
    print(f"{2 * SIZE**3 / min(seconds):.4e}")


if __name__ == "__main__":
    main()
