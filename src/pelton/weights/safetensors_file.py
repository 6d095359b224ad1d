"""Safetensors files: the header parsed and checked against the file's size, tensor data memory-mapped.

Layout: header length (u64), header (JSON: name -> dtype, shape, [start, end) within the data), data without gaps.
The safetensors package checks the same but does not say which tensor is at fault; a damaged download must be named.
"""

import json
import math
import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

MAX_DIMENSIONS = 16
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor: `offset` counts bytes from the start of the file."""

    name: str
    dtype: str  # "F32", "BF16" ...
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class SafetensorsFile:
    """A safetensors file: `tensors` by name in the order of their data.

    Raises:
        ValueError: the file is damaged or none; names file, tensor and reason in one line.
        OSError: the file cannot be read.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with self.path.open("rb") as file:
            header, start = _read_header(self.path, file)
            # A private mapping: torch insists on writable memory, and a stray write stays out of the file.
            self._buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        found = [
            _stored_tensor(self.path, name, entry, start) for name, entry in header.items() if name != "__metadata__"
        ]
        found.sort(key=lambda tensor: (tensor.offset, tensor.nbytes))
        _check_ranges(self.path, found, start, len(self._buffer))
        self.tensors = {tensor.name: tensor for tensor in found}

    def raw(self, name: str) -> memoryview:
        """The bytes of a tensor as they lie in the file, without a copy. They live as long as the view."""
        tensor = self.tensors[name]
        return memoryview(self._buffer)[tensor.offset : tensor.offset + tensor.nbytes]


def read_index(path: Path) -> dict[str, str]:
    """The weight_map of a model.safetensors.index.json: tensor name -> name of a file beside it."""
    try:
        index: Any = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{path}: has no weight_map")
    for name, file_name in cast(dict[str, Any], weight_map).items():
        if not isinstance(file_name, str) or Path(file_name).name != file_name:
            raise ValueError(f"{path}: tensor {name!r}: {file_name!r} is not the name of a file beside the index")
    return cast(dict[str, str], weight_map)


def _read_header(path: Path, file: BinaryIO) -> tuple[dict[str, Any], int]:
    """(the header's entries, where the data begins)."""
    start = file.read(8)
    if start == b"version ":
        raise ValueError(f"{path}: a git-LFS pointer in place of the file; fetch it with `git lfs pull`")
    if len(start) < 8:
        raise ValueError(f"{path}: {len(start)} bytes long, no safetensors file; truncated?")
    (length,) = struct.unpack("<Q", start)
    if length > min(os.fstat(file.fileno()).st_size - 8, MAX_HEADER_BYTES):
        raise ValueError(f"{path}: header of {length} bytes is longer than the file or the format allows; damaged?")
    try:
        header: Any = json.loads(file.read(length), object_pairs_hook=_refuse_repeated)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: header is not valid: {error}") from None
    if not isinstance(header, dict):
        raise ValueError(f"{path}: header is not a JSON object")
    return cast(dict[str, Any], header), 8 + length


def _refuse_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{repeated!r} stands twice in it")
    return entries


def _stored_tensor(path: Path, name: str, entry: Any, start: int) -> StoredTensor:  # noqa: ANN401 (JSON)
    where = f"{path}: tensor {name!r}"
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= cast(dict[str, Any], entry).keys():
        raise ValueError(f"{where}: header entry lacks dtype, shape or data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if dtype not in _DTYPE_BYTES:
        raise ValueError(f"{where}: unknown dtype {dtype!r}")
    if not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ValueError(f"{where}: shape {shape} or data_offsets {offsets} are impossible")
    nbytes = math.prod(shape) * _DTYPE_BYTES[dtype]
    if offsets[1] - offsets[0] != nbytes:
        raise ValueError(f"{where}: {dtype} {shape} needs {nbytes} bytes, data_offsets {offsets} hold another number")
    return StoredTensor(name, dtype, tuple(shape), start + offsets[0], nbytes)


def _are_counts(values: Any) -> bool:  # noqa: ANN401 (JSON)
    """Whether it is a list of integers that a file can mean: few enough and small enough to multiply."""
    if not isinstance(values, list) or len(cast(list[Any], values)) > MAX_DIMENSIONS:
        return False
    return all(type(value) is int and 0 <= value < 1 << 63 for value in cast(list[Any], values))


def _check_ranges(path: Path, tensors: list[StoredTensor], start: int, size: int) -> None:
    """The data must follow each other without gap or overlap up to the end of the file."""
    end, previous = start, "the header"
    for tensor in tensors:
        if tensor.offset != end:
            fault = "overlaps" if tensor.offset < end else "leaves a gap after"
            raise ValueError(f"{path}: tensor {tensor.name!r}: data {fault} {previous}")
        end, previous = tensor.offset + tensor.nbytes, repr(tensor.name)
        if end > size:
            where = f"{path}: tensor {tensor.name!r}"
            raise ValueError(f"{where}: data ends at byte {end}, the file at {size}; truncated, download again")
    if end != size:
        raise ValueError(f"{path}: {size - end} surplus bytes after the last tensor, {previous}")
