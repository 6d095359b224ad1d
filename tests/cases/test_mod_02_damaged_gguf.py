"""A damaged GGUF file is refused with a ValueError of one line, whatever is damaged: never a crash, never zeros.

Reported: crashes, reads past the end and endless allocations out of crafted or cut headers (llama.cpp#6774,
llama.cpp#24884, llama.cpp#26690).
"""

import random
import struct
from pathlib import Path

import pytest
import torch

from pelton.weights.checkpoint import open_checkpoint
from pelton.weights.model_files import ModelFiles
from weights.gguf_samples import write


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    write(path)
    return path


def load(path: Path) -> int:
    """Everything that a start reads; the number of tensors."""
    ModelFiles(path).info()
    return len(list(open_checkpoint(path, torch.float32).tensors()))


def test_mod_02_every_cut_is_refused(file: Path):
    assert load(file) > 10
    data = file.read_bytes()
    for length in [*range(0, 400, 13), *range(400, len(data) - 40, len(data) // 50)]:
        file.write_bytes(data[:length])
        with pytest.raises(ValueError, match=r"model\.gguf") as caught:
            load(file)
        assert "\n" not in str(caught.value)


def test_mod_02_any_damage_to_the_header_is_refused_or_harmless(file: Path):
    data = file.read_bytes()
    rng = random.Random(0)
    num_refused = 0
    for _ in range(300):
        damaged = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(3000)] = rng.choice([0, 128, 255, rng.randrange(256)])
        file.write_bytes(damaged)
        try:
            load(file)
        except ValueError:
            num_refused += 1
    assert num_refused > 100


@pytest.mark.parametrize("offset", [8, 16], ids=["tensors", "keys"])
@pytest.mark.parametrize("count", [2**32, 2**63, 2**64 - 1])
def test_mod_02_impossible_counts_are_refused_at_once(file: Path, offset: int, count: int):
    data = bytearray(file.read_bytes())
    data[offset : offset + 8] = struct.pack("<Q", count)
    file.write_bytes(data)
    with pytest.raises(ValueError, match=r"model\.gguf"):
        load(file)


@pytest.mark.parametrize("start", [b"GGUX", b"\0\0\0\0", b"version https://git-lfs.github.com/spec/v1\n"])
def test_mod_02_another_kind_of_file_is_refused(file: Path, start: bytes):
    file.write_bytes(start + file.read_bytes()[len(start) :])
    with pytest.raises(ValueError, match=r"model\.gguf"):
        load(file)
