"""A damaged checkpoint ends `pelton serve` before it serves, with one line that names file, tensor and reason.

Reported: zeros in the place of what is past the end of a file, weights left as they were initialized, servers that
start with half a model (osaurus-ai/vmlx-swift#217, QwenLM/Qwen3-VL#264).
"""

import json
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from live import launched
from pelton.cli import serve as serve_command
from pelton.cli import serving
from pelton.cli.main import main
from tiny_model import InProcessHost, save_tiny_model

from fakes import free_port

NORM = "model.layers.1.input_layernorm.weight"


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    """A checkpoint of several files; the one that holds NORM is first."""
    save_tiny_model(tmp_path, max_shard_size="100KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    names = sorted(set(index.values()), key=lambda name: (name != index[NORM], name))
    assert len(names) > 2
    return [tmp_path / name for name in names]


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """`pelton serve` with the engine in a thread, and ended as soon as it would serve."""

    async def serve(engine: object, config: object, listener: socket.socket) -> int:
        listener.close()
        return 0

    monkeypatch.setattr(serve_command, "ProcessHost", InProcessHost)
    monkeypatch.setattr(serving, "run_server", serve)


def header_of(path: Path) -> tuple[dict[str, Any], bytes]:
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def write(path: Path, header: dict[str, Any], data: bytes) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4096])


def leave_a_pointer(path: Path) -> None:
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 12345\n")


def lengthen_the_header(path: Path) -> None:
    path.write_bytes(struct.pack("<Q", 2**40) + path.read_bytes()[8:])


def overlap(path: Path) -> None:
    header, data = header_of(path)
    start, end = header[NORM]["data_offsets"]
    shift = -64 if start else 64
    header[NORM]["data_offsets"] = [start + shift, end + shift]
    write(path, header, data)


def change_a_shape(path: Path) -> None:
    header, data = header_of(path)
    header[NORM]["shape"] = [63]
    write(path, header, data)


def add_bytes(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0" * 100)


def fill_a_scale_with_nan(path: Path) -> None:
    header, data = header_of(path)
    start, end = header[NORM]["data_offsets"]
    write(path, header, data[:start] + struct.pack("<f", float("nan")) * ((end - start) // 4) + data[end:])


DAMAGES: dict[str, tuple[Callable[[Path], None], bool, str]] = {
    # name: (damage, whether the tensor can be named, the reason)
    "cut": (cut, True, "truncated"),
    "LFS pointer": (leave_a_pointer, False, "git-LFS pointer"),
    "missing": (Path.unlink, True, "the shard is missing"),
    "header longer than the file": (lengthen_the_header, False, "longer than the file"),
    "overlap": (overlap, True, "overlaps|leaves a gap"),
    "shape against bytes": (change_a_shape, True, "needs 252 bytes"),
    "surplus bytes": (add_bytes, True, "100 surplus bytes"),
    "NaN scale": (fill_a_scale_with_nan, True, "NaN"),
}


@pytest.mark.parametrize(("damage", "names_tensor", "reason"), DAMAGES.values(), ids=DAMAGES)
def test_mod_01_serve_names_file_tensor_and_reason_and_does_not_start(
    damage: Callable[[Path], None],
    names_tensor: bool,
    reason: str,
    shards: list[Path],
    in_process: None,
    capsys: pytest.CaptureFixture[str],
):
    damage(shards[0])
    code = main(["serve", str(shards[0].parent), "--port", str(free_port()), "--log-level", "error"])
    assert code != 0
    out, err = capsys.readouterr()
    assert not out, "the banner of a running server"
    lines = err.splitlines()
    assert len(lines) == 1, err
    assert shards[0].name in lines[0]
    assert any(word in lines[0] for word in reason.split("|")), lines[0]
    assert not names_tensor or ("'" in lines[0] and ".weight" in lines[0])


def test_mod_01_the_undamaged_checkpoint_serves(
    shards: list[Path], in_process: None, capsys: pytest.CaptureFixture[str]
):
    assert main(["serve", str(shards[0].parent), "--port", str(free_port()), "--log-level", "error"]) == 0
    assert "LlamaForCausalLM" in capsys.readouterr().out


@pytest.mark.e2e
def test_mod_01_a_real_process_exits_without_serving(shards: list[Path], tmp_path: Path):
    fill_a_scale_with_nan(shards[0])
    with launched(tmp_path / "log", str(tmp_path), "--log-level", "error") as (process, _):
        assert process.wait(60) != 0
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert NORM in line and shards[0].name in line and "NaN" in line
