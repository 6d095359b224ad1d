"""What the machine can do at most, measured beside the engines: limits.cpp, and a large product through oneDNN."""

import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "limits.cpp"
PROBE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Probe:
    """One limit: what `limits` (or gemm.py) is asked for, and the unit of its answer."""

    name: str
    arguments: tuple[str, ...]
    unit: str


def probes(num_threads: int) -> list[Probe]:
    bandwidths = [
        Probe(f"read_{threads}", ("read", str(threads)), "B/s, huge pages") for threads in sorted({1, num_threads})
    ]
    peaks = [Probe(kind, (kind, str(num_threads)), "op/s, registers only") for kind in ("fp32", "bf16", "int8")]
    return [*bandwidths, *peaks, Probe("onednn_bf16", (), "op/s, 2048 x 2048 x 2048")]


class Limits:
    """Samples of every limit, taken once a round."""

    def __init__(self, cache: Path, num_threads: int) -> None:
        self._binary = cache / f"limits-{platform.machine()}"
        self._num_threads = num_threads
        self.samples: dict[str, list[float]] = {}

    def compile(self) -> None:
        """For this machine.

        Raises:
            SystemExit: there is no C++ compiler.
        """
        self._binary.parent.mkdir(parents=True, exist_ok=True)
        command = ["g++", "-std=c++20", "-O3", "-march=native", "-pthread", str(SOURCE), "-o", str(self._binary)]
        try:
            subprocess.run(command, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise SystemExit(
                f"the probe of the machine's limits cannot be compiled: {error}; it needs g++ 12"
            ) from None

    def sample(self) -> None:
        """Measure each limit once. One that this machine lacks the instruction for stays without samples."""
        for probe in probes(self._num_threads):
            command = [str(self._binary), *probe.arguments]
            if not probe.arguments:
                command = [sys.executable, str(Path(__file__).with_name("gemm.py")), str(self._num_threads)]
            environment = os.environ | {"OMP_NUM_THREADS": str(self._num_threads)}
            result = subprocess.run(
                command, capture_output=True, text=True, timeout=PROBE_SECONDS, env=environment, check=False
            )
            if result.returncode == 0:
                self.samples.setdefault(probe.name, []).append(float(result.stdout))

    def best(self) -> dict[str, float]:
        """The highest sample of each: a limit is what was reached once."""
        return {name: max(samples) for name, samples in self.samples.items()}

    @property
    def bandwidth(self) -> str:
        """The name of the limit that all threads reading together set."""
        return f"read_{self._num_threads}"
