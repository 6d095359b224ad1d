"""GGUF files, versions 2 and 3: the header parsed and checked against the file's size, tensor data memory-mapped.

Layout (ggml/docs/gguf.md): magic, version, counts, key-value pairs, tensor descriptions, padding, tensor data.
Nothing that a header says is believed: each count, length and offset is compared with what the file can hold.
"""

import math
import mmap
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAGIC = b"GGUF"
MAX_METADATA = 1 << 16
MAX_TENSORS = 1 << 20
MAX_ARRAY_ITEMS = 1 << 23  # of all arrays together; the largest vocabularies have 2^18 tokens
MAX_DIMENSIONS = 4

# ggml_type: name, elements of a quantization block, bytes of a block.
_TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
}
# gguf_metadata_value_type of numbers: struct format of one.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_SPLIT_NAME = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: `shape` is row-major (PyTorch order), `offset` counts bytes from the start of the file."""

    name: str
    shape: tuple[int, ...]
    type: str  # "F32", "Q4_1" ...
    offset: int
    nbytes: int


class GGUFMetadata(Mapping[str, Any]):
    """The header's key-value pairs; arrays are lists.

    A string array is decoded when it is first asked for: it takes 25 ms per 50,000 tokens, and the engine process
    needs none of them. One that is not UTF-8 raises ValueError then.
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def __getitem__(self, key: str) -> Any:  # noqa: ANN401 (the header decides)
        value = self._values[key]
        if isinstance(value, _StringArray):
            value = self._values[key] = value.decode()
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class GGUFFile:
    """A GGUF file: `metadata` by key, `tensors` by name in file order.

    Raises:
        ValueError: not a GGUF file, damaged, or one part of a split model; names file, tensor and reason in one line.
        OSError: the file cannot be read.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        check_magic(self.path)
        with self.path.open("rb") as file:
            # A private mapping: torch insists on writable memory, and a stray write stays out of the file.
            self._buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        reader = _HeaderReader(self.path, self._buffer)
        self.version, num_tensors, num_metadata = reader.counts()
        self.metadata = GGUFMetadata(reader.read_metadata(num_metadata))
        _refuse_split(self.path, self.metadata)
        self.tensors = reader.read_tensors(num_tensors, self._alignment())

    def raw(self, name: str) -> memoryview:
        """The bytes of a tensor as they lie in the file, without a copy. They live as long as the view."""
        tensor = self.tensors[name]
        return memoryview(self._buffer)[tensor.offset : tensor.offset + tensor.nbytes]

    def _alignment(self) -> int:
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20 or alignment & (alignment - 1):
            raise ValueError(f"{self.path}: general.alignment must be a power of two, got {alignment!r}")
        return alignment


@dataclass(frozen=True, slots=True)
class _StringArray:
    """A string array of the header whose bounds are checked and whose strings are not decoded yet."""

    buffer: mmap.mmap
    position: int
    count: int
    where: str  # "FILE: metadata KEY", for messages

    def decode(self) -> list[str]:
        buffer, position, length_at = self.buffer, self.position, struct.Struct("<Q").unpack_from
        items: list[str] = []
        try:
            for _ in range(self.count):
                start = position + 8
                position = start + length_at(buffer, position)[0]
                items.append(str(buffer[start:position], "utf-8"))
        except UnicodeDecodeError:
            raise ValueError(f"{self.where}: holds a string that is not UTF-8") from None
        return items


class _HeaderReader:
    """A cursor over the header; every read stays within the buffer or raises ValueError."""

    def __init__(self, path: Path, buffer: mmap.mmap) -> None:
        self._path = path
        self._buffer = buffer
        self._size = len(buffer)
        self._position = 4
        self._where = "header"
        self._num_array_items = 0

    def counts(self) -> tuple[int, int, int]:
        """(version, number of tensors, number of key-value pairs)."""
        version = self._number("I")
        if version not in (2, 3):
            known = "byte order is not little-endian" if version & 0xFFFF == 0 else "supported: 2 and 3"
            raise self._error(f"GGUF version {version} is not supported ({known})")
        num_tensors, num_metadata = self._number("Q"), self._number("Q")
        if num_tensors > MAX_TENSORS or num_metadata > MAX_METADATA:
            raise self._error(f"claims {num_tensors} tensors and {num_metadata} metadata entries; damaged?")
        return version, num_tensors, num_metadata

    def read_metadata(self, count: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for index in range(count):
            self._where = f"metadata entry {index}"
            key = self._strings(1).decode()[0]
            self._where = f"metadata {_quoted(key)}"
            if key in metadata:
                raise self._error("stands twice in the header")
            metadata[key] = self._value(self._number("I"))
        return metadata

    def read_tensors(self, count: int, alignment: int) -> dict[str, TensorInfo]:
        described: dict[str, tuple[tuple[int, ...], int, int]] = {}
        for index in range(count):
            self._where = f"tensor {index}"
            name = self._strings(1).decode()[0]
            self._where = f"tensor {_quoted(name)}"
            if name in described:
                raise self._error("stands twice in the header")
            num_dimensions = self._number("I")
            if not 1 <= num_dimensions <= MAX_DIMENSIONS:
                raise self._error(f"has {num_dimensions} dimensions; 1 to {MAX_DIMENSIONS} are possible")
            shape = self._numbers("Q", num_dimensions)[::-1]  # ggml names the fastest dimension first
            described[name] = shape, self._number("I"), self._number("Q")
        start = -(-self._position // alignment) * alignment
        tensors = {name: self._tensor(name, parts, start, alignment) for name, parts in described.items()}
        self._refuse_overlap(tensors)
        return tensors

    def _tensor(
        self, name: str, description: tuple[tuple[int, ...], int, int], start: int, alignment: int
    ) -> TensorInfo:
        shape, type_id, offset = description
        self._where = f"tensor {_quoted(name)}"
        if type_id not in _TENSOR_TYPES:
            raise self._error(f"has the unknown type {type_id}")
        type_name, block_elements, block_bytes = _TENSOR_TYPES[type_id]
        if 0 in shape or shape[-1] % block_elements:
            raise self._error(f"has the shape {list(shape)}, impossible for {type_name} in blocks of {block_elements}")
        if offset % alignment:
            raise self._error(f"offset {offset} is not a multiple of the alignment {alignment}")
        nbytes = math.prod(shape) // block_elements * block_bytes
        if start + offset + nbytes > self._size:
            raise self._error(f"data ends at byte {start + offset + nbytes}, the file at {self._size}; truncated?")
        return TensorInfo(name, shape, type_name, start + offset, nbytes)

    def _refuse_overlap(self, tensors: dict[str, TensorInfo]) -> None:
        end = 0
        previous = ""
        for tensor in sorted(tensors.values(), key=lambda tensor: tensor.offset):
            if tensor.offset < end:
                self._where = f"tensor {_quoted(tensor.name)}"
                raise self._error(f"data overlaps that of {_quoted(previous)}")
            end, previous = tensor.offset + tensor.nbytes, tensor.name

    def _value(self, kind: int) -> Any:  # noqa: ANN401 (the header decides)
        if kind == _STRING:
            return self._strings(1).decode()[0]
        if kind == _ARRAY:
            return self._array(self._number("I"), self._number("Q"))
        return self._numbers(self._scalar(kind), 1)[0]

    def _array(self, kind: int, count: int) -> list[Any] | _StringArray:
        self._num_array_items += count
        if self._num_array_items > MAX_ARRAY_ITEMS:
            raise self._error(f"claims an array of {count} items; damaged?")
        return self._strings(count) if kind == _STRING else list(self._numbers(self._scalar(kind), count))

    def _scalar(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise self._error(f"has the value type {kind}, which is unknown or an array of arrays")
        return _SCALARS[kind]

    def _strings(self, count: int) -> _StringArray:
        # The hot loop, over some 100,000 tokens and merges: no method call and no decoding per string.
        buffer, size, position, length_at = self._buffer, self._size, self._position, struct.Struct("<Q").unpack_from
        strings = _StringArray(buffer, position, count, f"{self._path}: {self._where}")
        try:
            for _ in range(count):
                position += 8 + length_at(buffer, position)[0]
                if position > size:
                    raise self._error("a string reaches past the end of the file")
        except struct.error:
            raise self._error("the file ends within the header") from None
        self._position = position
        return strings

    def _number(self, format: str) -> int:
        return self._numbers(format, 1)[0]

    def _numbers(self, format: str, count: int) -> tuple[Any, ...]:
        layout = f"<{count}{format}"
        if struct.calcsize(layout) > self._size - self._position:
            raise self._error("the file ends within the header")
        values = struct.unpack_from(layout, self._buffer, self._position)
        self._position += struct.calcsize(layout)
        return values

    def _error(self, reason: str) -> ValueError:
        return ValueError(f"{self._path}: {self._where}: {reason}")


def _quoted(name: str) -> str:
    """A name out of the file, safe and short enough for a one-line message."""
    return repr(name if len(name) <= 80 else f"{name[:77]}...")


def check_magic(path: Path) -> None:
    """ValueError unless the file begins as GGUF files do."""
    with path.open("rb") as file:
        start = file.read(8)
    if not start.startswith(MAGIC):
        pointer = " (a git-LFS pointer; fetch the file itself)" if start == b"version " else ""
        raise ValueError(f"{path}: not a GGUF file: first bytes are {start!r}{pointer}")


def _refuse_split(path: Path, metadata: Mapping[str, Any]) -> None:
    named = _SPLIT_NAME.search(path.name)
    count = metadata.get("split.count", int(named[1]) if named else 1)
    if count not in (0, 1):
        raise ValueError(
            f"{path}: one of the {count} parts of a split model, which is not supported yet; "
            "join them with `llama-gguf-split --merge`"
        )
