"""Build the CPU kernels with AddressSanitizer and UndefinedBehaviorSanitizer, and run their tests with them once.

The instrumented package is installed in build/sanitize and leaves the one in the virtual environment alone.
Arguments are handed to pytest in place of the kernel tests.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

BUILD = Path("build/sanitize")
SITE = BUILD / "site"
KERNEL_TESTS = ("tests/ops", "tests/formats")
# Reads and writes one row past the end of its tensors.
OVERFLOW = """
import torch
from pelton.kernels.cpu import extension
x, out = torch.zeros(1, 64), torch.zeros(1, 32)
extension.silu_mul(x.data_ptr(), 64, out.data_ptr(), 32, 0, 2, 32)
"""


def main() -> None:
    build()
    verify_that_an_overflow_is_found()
    tests = sys.argv[1:] or KERNEL_TESTS
    # A finding ends the process: captured, its report would be lost.
    pytest = python("-m", "pytest", "--verbose", "--capture=no")
    sys.exit(subprocess.run([*pytest, *tests], env=environment(), check=False).returncode)


def build() -> None:
    settings = {
        "build-dir": str(BUILD / "cmake"),
        "cmake.build-type": "Debug",
        "cmake.define.PELTON_SANITIZE": "ON",
        "install.strip": "false",
    }
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", str(SITE), "."]
    options = [f"--config-settings={name}={value}" for name, value in settings.items()]
    subprocess.run([sys.executable, *install, *options], check=True)


def verify_that_an_overflow_is_found() -> None:
    """A run in which nothing is found says something only if something could have been."""
    result = subprocess.run(python("-c", OVERFLOW), env=environment(), capture_output=True, text=True, check=False)
    if result.returncode == 0 or "heap-buffer-overflow" not in result.stderr:
        sys.exit(f"a planted overflow was not found:\n{result.stdout}{result.stderr}")


def python(*arguments: str) -> list[str]:
    """Without site-packages' own hooks (-S), of which the editable installation's would find its kernels first."""
    return [sys.executable, "-S", *arguments]


def environment() -> dict[str, str]:
    """The runtime comes first among the libraries. What CPython and torch keep until the end is no leak of ours."""
    # The C++ library second: the runtime looks for its exceptions once, before the extension would load it.
    libraries = [library("libasan.so"), library("libstdc++.so.6")]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join([str(SITE.resolve()), sysconfig.get_path("purelib")]),
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }


def library(name: str) -> str:
    """Where the compiler has it."""
    command = ["g++", f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
