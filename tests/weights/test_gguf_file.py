"""GGUFFile against the gguf package's reader, and against damaged and hostile files."""

import struct
import time

import gguf
import numpy as np
import pytest

from pelton.weights.gguf_config import gguf_config
from pelton.weights.gguf_file import GGUFFile
from pelton.weights.hub import locate
from weights.gguf_samples import write


@pytest.fixture
def sample(tmp_path):
    path = tmp_path / "model.gguf"
    write(path)
    return path


def string(text):
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def file_bytes(metadata=(), tensors=(), data=b"", version=3, counts=None):
    """A GGUF file by hand: `metadata` are encoded pairs, `tensors` (name, dimensions, type, offset)."""
    num_tensors, num_metadata = counts or (len(tensors), len(metadata))
    header = b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_metadata) + b"".join(metadata)
    for name, dimensions, type_id, offset in tensors:
        header += string(name) + struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
        header += struct.pack("<IQ", type_id, offset)
    return header + bytes(-len(header) % 32) + data


def pair(key, kind, value):
    return string(key) + struct.pack("<I", kind) + value


ALIGNMENT = pair("general.alignment", 4, struct.pack("<I", 32))
F32 = 0


def test_reads_what_the_gguf_package_reads(tmp_path):
    path = tmp_path / "model.gguf"
    kinds = gguf.GGUFValueType
    extra = [
        ("int8", -3, kinds.INT8),
        ("uint64", 2**63 + 1, kinds.UINT64),
        ("float64", 0.1, kinds.FLOAT64),
        ("bool", True, kinds.BOOL),
        ("text", "grüße 東京", kinds.STRING),
        ("empty", "", kinds.STRING),
        ("texts", ["a", "", "ü"], kinds.ARRAY),
        ("numbers", [1, -2, 3], kinds.ARRAY),
        ("reals", [0.5, -1.25], kinds.ARRAY),
        ("flags", [True, False], kinds.ARRAY),
    ]
    write(path, metadata=extra)
    file = GGUFFile(path)
    reference = gguf.GGUFReader(path)
    expected = {key: field.contents() for key, field in reference.fields.items() if not key.startswith("GGUF.")}
    assert dict(file.metadata) == expected
    assert [*file.tensors] == [tensor.name for tensor in reference.tensors]
    for tensor in reference.tensors:
        info = file.tensors[tensor.name]
        assert (info.type, info.shape) == (tensor.tensor_type.name, tuple(reversed(tensor.shape.tolist())))
        assert file.raw(tensor.name).tobytes() == tensor.data.tobytes()


def test_the_demo_model_parses_in_a_fraction_of_the_start_up_budget():
    path = locate(None)
    times = []
    for _ in range(3):
        start = time.process_time()
        file = GGUFFile(path)
        gguf_config(file)
        times.append(time.process_time() - start)
    assert min(times) < 0.1  # 16 ms on a 2 GHz core, 5 s with the gguf package
    assert len(file.tensors) == 272
    tokens, merges = file.metadata["tokenizer.ggml.tokens"], file.metadata["tokenizer.ggml.merges"]
    assert (len(tokens), tokens[2], merges[0]) == (49152, "<|im_end|>", "Ġ t")
    assert file.metadata["tokenizer.ggml.tokens"] is tokens


def test_version_2_is_read(tmp_path, sample):
    data = bytearray(sample.read_bytes())
    data[4:8] = struct.pack("<I", 2)
    old = tmp_path / "old.gguf"
    old.write_bytes(data)
    assert dict(GGUFFile(old).metadata) == dict(GGUFFile(sample).metadata)


HOSTILE = {
    "empty": (b"", "not a GGUF file: first bytes are b''"),
    "other format": (b"PK\3\4 and so on", r"not a GGUF file: first bytes are b'PK\\x03\\x04 and'"),
    "git-LFS pointer": (b"version https://git-lfs.github.com/spec/v1\n", "git-LFS pointer"),
    "magic alone": (b"GGUF", "ends within the header"),
    "version 1": (file_bytes(version=1), "version 1 is not supported"),
    "big endian": (file_bytes(version=3 << 24), "byte order is not little-endian"),
    "absurd tensor count": (file_bytes(counts=(2**63, 0)), "claims 9223372036854775808 tensors"),
    "absurd metadata count": (file_bytes(counts=(0, 2**40)), "claims 0 tensors and 1099511627776 metadata"),
    "missing tensors": (file_bytes(counts=(5, 0)), "the file ends within the header"),
    "key past the end": (file_bytes([struct.pack("<Q", 2**62)]), "metadata entry 0: a string reaches past the end"),
    "key of 2^64 bytes": (file_bytes([struct.pack("<Q", 2**64 - 1)]), "a string reaches past the end"),
    "key not UTF-8": (file_bytes([string(b"\xff")]), "not UTF-8"),
    "key twice": (file_bytes([ALIGNMENT, ALIGNMENT]), "'general.alignment': stands twice"),
    "unknown value type": (file_bytes([pair("x", 77, b"")]), "'x': has the value type 77"),
    "array of arrays": (
        file_bytes([pair("x", 9, struct.pack("<IQ", 9, 1))]),
        "has the value type 9, which is unknown or an array of arrays",
    ),
    "absurd array": (file_bytes([pair("x", 9, struct.pack("<IQ", 0, 2**60))]), "claims an array of"),
    "array past the end": (file_bytes([pair("x", 9, struct.pack("<IQ", 12, 10**6))]), "ends within the header"),
    "string array past the end": (file_bytes([pair("x", 9, struct.pack("<IQ", 8, 10**6))]), "ends within|past the end"),
    "alignment 0": (file_bytes([pair("general.alignment", 4, bytes(4))]), "general.alignment must be a power of two"),
    "alignment text": (file_bytes([pair("general.alignment", 8, string("x"))]), "must be a power of two, got 'x'"),
    "tensor twice": (
        file_bytes(tensors=[("t", [4], F32, 0), ("t", [4], F32, 32)], data=bytes(64)),
        "'t': stands twice",
    ),
    "no dimensions": (file_bytes(tensors=[("t", [], F32, 0)], data=bytes(64)), "has 0 dimensions"),
    "many dimensions": (file_bytes(tensors=[("t", [1] * 9, F32, 0)], data=bytes(64)), "has 9 dimensions"),
    "unknown type": (file_bytes(tensors=[("t", [4], 1000, 0)], data=bytes(64)), "'t': has the unknown type 1000"),
    "half a block": (file_bytes(tensors=[("t", [16], 3, 0)], data=bytes(64)), "impossible for Q4_1"),
    "no elements": (file_bytes(tensors=[("t", [0], F32, 0)], data=bytes(64)), r"shape \[0\], impossible"),
    "misaligned": (file_bytes(tensors=[("t", [4], F32, 4)], data=bytes(64)), "offset 4 is not a multiple"),
    "truncated data": (file_bytes(tensors=[("t", [8], F32, 0)], data=bytes(31)), "'t': data ends at .*; truncated"),
    "product overflow": (file_bytes(tensors=[("t", [2**32] * 4, F32, 0)], data=bytes(64)), "'t': data ends at"),
    "overlap": (
        file_bytes(tensors=[("a", [16], F32, 0), ("b", [4], F32, 32)], data=bytes(64)),
        "tensor 'b': data overlaps that of 'a'",
    ),
    "line feed in a name": (file_bytes(tensors=[("a\nb", [4], 1000, 0)], data=bytes(64)), r"tensor 'a\\nb': has the"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_damaged_file_is_refused_in_one_line(tmp_path, case):
    data, message = HOSTILE[case]
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=message) as raised:
        GGUFFile(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert "\n" not in str(raised.value)


def test_a_string_array_that_is_not_utf8_is_refused_when_it_is_read(tmp_path):
    path = tmp_path / "bad.gguf"
    path.write_bytes(file_bytes([pair("x", 9, struct.pack("<IQ", 8, 1) + string(b"\xff"))]))
    with pytest.raises(ValueError, match="metadata 'x': holds a string that is not UTF-8"):
        GGUFFile(path).metadata["x"]


def test_a_part_of_a_split_model_is_refused(tmp_path, sample):
    part = tmp_path / "model-00001-of-00003.gguf"
    part.write_bytes(sample.read_bytes())
    with pytest.raises(ValueError, match="one of the 3 parts of a split model, which is not supported yet"):
        GGUFFile(part)
    renamed = tmp_path / "renamed.gguf"
    write(renamed, metadata=[("split.count", 2, gguf.GGUFValueType.UINT16)])
    with pytest.raises(ValueError, match="one of the 2 parts"):
        GGUFFile(renamed)


def test_every_truncation_is_refused(tmp_path, sample):
    data = sample.read_bytes()
    path = tmp_path / "cut.gguf"
    for length in [*range(0, 200), *range(200, len(data), 3989), len(data) - 32]:
        path.write_bytes(data[:length])
        with pytest.raises(ValueError, match=r"cut\.gguf: "):
            GGUFFile(path)


def test_random_damage_gives_a_value_error_or_a_file_within_bounds(tmp_path, sample):
    random = np.random.default_rng(0)
    original = np.frombuffer(sample.read_bytes(), dtype=np.uint8)
    header_bytes = GGUFFile(sample).tensors["token_embd.weight"].offset
    path = tmp_path / "mutated.gguf"
    messages = []
    for _ in range(800):
        data = original.copy()
        for position in random.integers(0, header_bytes, size=random.integers(1, 4)):
            data[position] = random.choice([0, 1, 0x7F, 0x80, 0xFF, random.integers(256)])
        path.write_bytes(data.tobytes())
        try:
            file = GGUFFile(path)
            dict(file.metadata)
            gguf_config(file)
        except ValueError as error:
            messages.append(str(error))
        else:
            assert all(len(file.raw(name)) == info.nbytes for name, info in file.tensors.items())
    assert len(messages) > 300  # the mutations do reach the checks
    assert not any("\n" in message for message in messages)
