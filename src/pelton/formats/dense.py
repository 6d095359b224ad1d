"""Dense: a weight stored as plain numbers, in the layout that products read.

Shapes: N outputs, K inputs, T tokens.
"""

from dataclasses import dataclass

import torch

from pelton.formats.memory import huge_page_bytes
from pelton.kernels.cpu import ELEMENT_TYPES, extension


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """w [N, K] in bfloat16 or float32.

    `packed` weights are bytes in the layout of csrc/linear.h, and no other copy exists; the others are [N, K].
    """

    data: torch.Tensor
    shape: tuple[int, int]
    dtype: torch.dtype
    packed: bool

    @classmethod
    def from_tensor(cls, w: torch.Tensor, dtype: torch.dtype) -> "Dense":
        """Convert w [N, K], of any floating-point type, to `dtype` (bfloat16 or float32) and pack it if it can be."""
        num_outputs, num_inputs = w.shape
        w = w.detach().to(dtype)
        if extension is None or w.device.type != "cpu":
            return cls(w.contiguous(), (num_outputs, num_inputs), dtype, packed=False)
        w = w if w.stride(1) == 1 else w.contiguous()
        element_type = ELEMENT_TYPES[dtype]
        data = huge_page_bytes(extension.linear_packed_bytes(element_type, num_outputs, num_inputs))
        extension.linear_pack(w.data_ptr(), w.stride(0), element_type, num_outputs, num_inputs, data.data_ptr())
        return cls(data, (num_outputs, num_inputs), dtype, packed=True)

    @property
    def gated(self) -> bool:
        """Whether one product gives silu(gate) · up. Never: gate and up are multiplied by side by side."""
        return False

    @property
    def nbytes(self) -> int:
        """Memory held, padding included."""
        return self.data.nbytes

    def rows(self, ids: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Rows `ids` [T] int64, each in [0, N): [T, K]. An embedding's lookup.

        `out` [T, K] contiguous, float32 or bfloat16, is written to; a new tensor of the weight's dtype by default.
        """
        num_outputs, num_inputs = self.shape
        if out is None:
            out = torch.empty(ids.numel(), num_inputs, dtype=self.dtype, device=self.data.device)
        if not self.packed:
            return out.copy_(self.data[ids])
        assert extension is not None and ids.dtype is torch.int64 and ids.is_contiguous()
        assert out.shape == (ids.numel(), num_inputs) and out.is_contiguous()
        inside = extension.linear_unpack_rows(
            self.data.data_ptr(), ELEMENT_TYPES[self.dtype], ids.data_ptr(), ids.numel(), num_outputs, num_inputs,
            out.data_ptr(), ELEMENT_TYPES[out.dtype],
        )  # fmt: skip
        assert inside, f"row ids must lie in [0, {num_outputs})"
        return out

    def dequantize(self) -> torch.Tensor:
        """[N, K] in the weight's dtype, a new tensor."""
        return self.rows(torch.arange(self.shape[0], device=self.data.device))
