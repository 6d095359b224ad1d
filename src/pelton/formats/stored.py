"""The rows of a checkpoint's matrix as csrc/stored_rows.h reads them, whatever type they are stored in."""

from dataclasses import dataclass

import torch

from pelton.formats.gguf import GGUFTensor

_PLAIN_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_BLOCK_TYPES = {"Q4_0": 3, "Q4_1": 4, "Q8_0": 5}


@dataclass(frozen=True, slots=True, eq=False)
class StoredRows:
    """A matrix [num_rows, num_inputs], `type` being csrc/stored_rows.h's number of how it is stored.

    `keep` owns the memory at `address`, whose rows are `row_bytes` apart.
    """

    keep: torch.Tensor
    type: int
    row_bytes: int
    num_rows: int
    num_inputs: int

    @classmethod
    def of(cls, part: torch.Tensor | GGUFTensor) -> "StoredRows":
        """Without a copy where the type is one that the kernels read, by way of float32 otherwise.

        Raises:
            ValueError: a GGUF tensor of a type that formats.gguf does not read.
        """
        if isinstance(part, GGUFTensor):
            num_rows, num_inputs = part.shape
            if part.type in _BLOCK_TYPES:
                return cls(part.raw, _BLOCK_TYPES[part.type], part.raw.numel() // num_rows, num_rows, num_inputs)
            part = part.dequantize(torch.float32)
        num_rows, num_inputs = part.shape
        part = part if part.stride(1) == 1 else part.contiguous()
        return cls(part, _PLAIN_TYPES[part.dtype], part.stride(0) * part.itemsize, num_rows, num_inputs)

    @property
    def address(self) -> int:
        return self.keep.data_ptr()
