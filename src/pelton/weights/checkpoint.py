"""Checkpoint: the weights of a model by Hugging Face name, out of safetensors or GGUF, read as they are asked for."""

import itertools
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from pelton.formats.gguf import DENSE_TYPES, SUPPORTED_TYPES, GGUFTensor
from pelton.formats.grouped import GroupedAffine
from pelton.weights.gguf_config import gguf_architecture, gguf_config, hugging_face_name
from pelton.weights.gguf_file import GGUFFile
from pelton.weights.safetensors_file import SafetensorsFile, read_index

_SAFETENSORS_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


class Checkpoint(Protocol):
    """Named weights on disk. Opening one checks names, shapes and byte ranges; nothing is read before `tensors()`."""

    @property
    def names(self) -> Mapping[str, tuple[int, ...]]:
        """Shape of each tensor by Hugging Face name, in file order."""
        ...

    def tensors(self) -> Iterator[tuple[str, Tensor | GGUFTensor]]:
        """Each (name, tensor), in file order and in the dtype given at open, or as it is stored.

        A tensor that needs no conversion is a view of the memory-mapped file: private, so writing to it is safe.
        """
        ...


def open_checkpoint(path: str | Path, dtype: torch.dtype | None, *, stored: bool = False) -> Checkpoint:
    """Open a GGUF file or a directory with model.safetensors, single or sharded.

    Args:
        path: what `hub.locate` returns.
        dtype: float32, bfloat16 or float16, the type of the tensors that the checkpoint yields. None leaves each as
            it is stored, quantized matrices of a GGUF file as GGUFTensor.
        stored: yield as GGUFTensor, without conversion, the matrices whose type products can read.

    Raises:
        ValueError: a file is damaged, missing, of another kind or holds a type that is not supported; one line naming
            file, tensor and reason. Or `stored` has no effect.
    """
    path = Path(path)
    if stored and path.is_dir():
        raise ValueError(f"weight_format native is for quantized GGUF files, {path} is none; set --weight-format dense")
    return SafetensorsCheckpoint(path, dtype) if path.is_dir() else GGUFCheckpoint(GGUFFile(path), dtype, stored)


class SafetensorsCheckpoint:
    """model.safetensors, or the shards that model.safetensors.index.json names."""

    def __init__(self, directory: Path, dtype: torch.dtype | None) -> None:
        self._dtype = dtype
        self._files = _open_shards(directory)
        self.names: dict[str, tuple[int, ...]] = {}
        for file in self._files:
            for tensor in file.tensors.values():
                where = f"{file.path}: tensor {tensor.name!r}"
                if tensor.name in self.names:
                    raise ValueError(f"{where}: stands in another shard as well")
                if tensor.dtype not in _SAFETENSORS_DTYPES:
                    known = ", ".join(_SAFETENSORS_DTYPES)
                    raise ValueError(f"{where}: dtype {tensor.dtype} is not supported yet; supported: {known}")
                self.names[tensor.name] = tensor.shape

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        for file in self._files:
            for stored in file.tensors.values():
                raw = file.raw(stored.name)
                dtype = _SAFETENSORS_DTYPES[stored.dtype]
                if stored.offset % dtype.itemsize:  # headers of early files are not padded
                    raw = bytearray(raw)
                flat = torch.frombuffer(raw, dtype=dtype) if stored.nbytes else torch.empty(0, dtype=dtype)
                tensor = flat.view(*stored.shape)
                try:
                    _check_vector(tensor)
                except ValueError as error:
                    raise ValueError(f"{file.path}: tensor {stored.name!r}: {error}") from None
                yield stored.name, tensor.to(self._dtype or dtype)


class GGUFCheckpoint:
    """A GGUF file whose tensors are converted or checked one after the other, by threads side by side."""

    def __init__(self, file: GGUFFile, dtype: torch.dtype | None, stored: bool) -> None:
        self._file = file
        self._dtype = dtype
        self._stored = stored
        self._num_heads = _interleaved_heads(file)
        self._names = {name: hugging_face for name in file.tensors if (hugging_face := self._translate(name))}
        self.names = {hugging_face: file.tensors[name].shape for name, hugging_face in self._names.items()}
        if stored and not any(
            GroupedAffine.can_hold(file.tensors[name].type, file.tensors[name].shape) for name in self._names
        ):
            raise ValueError(
                f"weight_format native has no effect: {file.path} holds no Q4_0, Q4_1 or Q8_0 matrices, or the CPU "
                "kernels are not built; set --weight-format dense"
            )

    def tensors(self) -> Iterator[tuple[str, Tensor | GGUFTensor]]:
        num_threads = torch.get_num_threads()
        names = iter(self._names.items())
        with ThreadPoolExecutor(num_threads) as threads:

            def start(count: int) -> Iterator[tuple[str, Future[Tensor | GGUFTensor]]]:
                for name, hugging_face in itertools.islice(names, count):
                    yield hugging_face, threads.submit(self._read, name)

            # A few tensors ahead of the caller, so that memory holds few of them twice.
            pending = deque(start(2 * num_threads))
            while pending:
                hugging_face, future = pending.popleft()
                yield hugging_face, future.result()
                pending.extend(start(1))

    def _read(self, name: str) -> Tensor | GGUFTensor:
        tensor = self._file.tensors[name]
        raw = torch.frombuffer(self._file.raw(name), dtype=torch.uint8)
        num_heads = self._num_heads.get(self._names[name].rsplit(".", 2)[-2])
        if num_heads is not None:
            raw = _halves_from_pairs(raw.view(tensor.shape[0], -1), num_heads)
        whole = GGUFTensor(raw, tensor.type, tensor.shape)
        try:
            if self._keeps(whole):
                whole.check_scales()
                return whole
            plain = whole.dequantize(self._dtype or DENSE_TYPES.get(tensor.type, torch.float32))
            _check_vector(plain)
            return plain
        except ValueError as error:
            raise ValueError(f"{self._file.path}: tensor {name!r}: {error}") from None

    def _keeps(self, tensor: GGUFTensor) -> bool:
        """Whether the tensor is yielded as it is stored, quantized."""
        if self._stored:
            return GroupedAffine.can_hold(tensor.type, tensor.shape)
        return self._dtype is None and tensor.type not in DENSE_TYPES and len(tensor.shape) == 2

    def _translate(self, name: str) -> str | None:
        where = f"{self._file.path}: tensor {name!r}"
        tensor = self._file.tensors[name]
        if tensor.type not in SUPPORTED_TYPES:
            known = ", ".join(SUPPORTED_TYPES)
            raise ValueError(f"{where}: type {tensor.type} is not supported yet; take a file with types {known}")
        try:
            hugging_face = hugging_face_name(name)
        except KeyError:
            raise ValueError(f"{where}: no such parameter in this architecture") from None
        num_heads = self._num_heads.get((hugging_face or "..").rsplit(".", 2)[-2], 0)
        rows = tensor.shape[0]
        if num_heads and (rows % (2 * num_heads) or tensor.nbytes % rows):
            raise ValueError(f"{where}: shape {list(tensor.shape)} does not fit {num_heads} attention heads")
        return hugging_face


def _check_vector(tensor: Tensor) -> None:
    """ValueError where the scale of a norm or a bias is not finite: one such number makes every answer NaN.

    Matrices are not looked through, that would read all of a model twice; a NaN out of them ends the request it meets.
    """
    if tensor.dim() == 1 and not tensor.isfinite().all():
        kind = "NaN" if tensor.isnan().any() else "infinite"
        raise ValueError(f"holds {kind} values; damaged, download it again")


def _open_shards(directory: Path) -> list[SafetensorsFile]:
    single, index = directory / _SINGLE, directory / _INDEX
    if single.exists():
        return [SafetensorsFile(single)]
    if not index.exists():
        raise ValueError(f"{directory}: neither {_SINGLE} nor {_INDEX} is there{_pickle_hint(directory)}")
    weight_map = read_index(index)
    files: dict[str, SafetensorsFile] = {}
    for name, file_name in weight_map.items():
        path = directory / file_name
        if file_name not in files:
            if not path.exists():
                raise ValueError(f"{path}: the shard is missing; {_INDEX} names it for tensor {name!r}")
            files[file_name] = SafetensorsFile(path)
        if name not in files[file_name].tensors:
            raise ValueError(f"{path}: tensor {name!r} is missing; {_INDEX} says it is in this shard")
    return list(files.values())


def _pickle_hint(directory: Path) -> str:
    pickles = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in directory.glob(pattern))
    if not pickles:
        return ""
    return (
        f"; {pickles[0]} is a pickle, which can run code when it is loaded, and is refused: convert it to safetensors"
    )


def _interleaved_heads(file: GGUFFile) -> dict[str, int]:
    """Number of heads of the projections whose rows lie in pairs, as llama.cpp stores them for "llama" alone."""
    if gguf_architecture(file) != "llama":
        return {}
    config = gguf_config(file)
    return {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}


def _halves_from_pairs(rows: Tensor, num_heads: int) -> Tensor:
    """Reorder each head's rows from rotated pairs (0, D/2, 1, D/2 + 1, ...) to halves (0, 1, ..., D/2, ...).

    llama.cpp rotates neighbouring elements, Hugging Face elements i and i + D/2; convert_hf_to_gguf.py permutes the
    rows of Llama's q and k to fit, and this undoes it. Whole rows move, so any type of weight will do.

    Args:
        rows: uint8 [num_heads * D, bytes of a row].

    Returns:
        uint8 [num_heads * D * bytes of a row].
    """
    return rows.view(num_heads, -1, 2, rows.shape[1]).transpose(1, 2).reshape(-1)
