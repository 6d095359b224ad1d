"""What this machine has, read from the system without loading anything heavy."""

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from pelton.config import available_memory

# The flags of /proc/cpuinfo that decide which kernels run.
RELEVANT_CPU_FLAGS = (
    *("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16"),
    *("amx_tile", "amx_bf16", "amx_int8", "asimd", "bf16", "i8mm", "sve"),
)
_PROBE_SECONDS = 60
# Runs in a process of its own: the extension shares torch's OpenMP runtime, so that torch is loaded before it.
_KERNEL_PROBE = """
import json, logging
logging.disable()
from pelton.kernels.cpu import extension
print(json.dumps(None if extension is None else extension.features()))
"""


@dataclass(frozen=True, slots=True)
class Machine:
    """Sizes are bytes. `cpu_quota` is the cores that a control group grants, None without a limit."""

    cpu: str
    num_cores: int
    cpu_quota: float | None
    cpu_flags: tuple[str, ...]
    total_memory: int
    available_memory: int
    transparent_huge_pages: str
    num_huge_pages: int


def probe_machine() -> Machine:
    """Read the processor, the memory and the limits of this process."""
    cpu_info = _read_fields(Path("/proc/cpuinfo"))
    memory = _read_fields(Path("/proc/meminfo"))
    present = set(cpu_info.get("flags", cpu_info.get("Features", "")).split())
    return Machine(
        cpu=cpu_info.get("model name") or platform.processor() or platform.machine(),
        num_cores=len(os.sched_getaffinity(0)),
        cpu_quota=_cpu_quota(),
        cpu_flags=tuple(flag for flag in RELEVANT_CPU_FLAGS if flag in present),
        total_memory=int(memory["MemTotal"].split()[0]) * 1024,
        available_memory=available_memory(),
        transparent_huge_pages=_transparent_huge_pages(),
        num_huge_pages=int(memory.get("HugePages_Total", "0")),
    )


def has_cpu_kernels() -> bool:
    """Whether this installation has the compiled extension, by its list of files: importing it would load torch."""
    files = importlib.metadata.files("pelton") or []
    return any(file.parent.name == "cpu" and file.name.startswith("_cpu.") for file in files)


def probe_kernels() -> dict[str, bool] | None:
    """The instruction sets that the compiled kernels use on this machine; None when they are missing.

    Raises:
        OSError: the probing process failed; the message has the last line that it wrote.
    """
    command = [sys.executable, "-c", _KERNEL_PROBE]
    result = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False)
    if result.returncode:
        last_line = (result.stderr.strip().splitlines() or ["no message"])[-1]
        raise OSError(f"the kernels cannot be loaded: {last_line}")
    return json.loads(result.stdout)


def installed_version(distribution: str) -> str | None:
    """From the package's metadata, without importing it; None when it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _read_fields(path: Path) -> dict[str, str]:
    """`name: value` lines; of a name that repeats (one processor after another) the first."""
    fields: dict[str, str] = {}
    for line in path.read_text().splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    return fields


def _cpu_quota() -> float | None:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _transparent_huge_pages() -> str:
    """always, madvise or never; the kernel writes the chosen one in brackets."""
    try:
        text = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return "unknown"
    return text.partition("[")[2].partition("]")[0] or "unknown"
