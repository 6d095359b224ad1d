"""Int8: a weight quantized to int8 when it is loaded, with one scale an output.

Shapes: N outputs, K inputs, T tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pelton.formats.gguf import GGUFTensor
from pelton.formats.memory import huge_page_bytes
from pelton.formats.stored import StoredRows
from pelton.kernels.cpu import ELEMENT_TYPES, extension


@dataclass(frozen=True, slots=True, eq=False)
class Int8:
    """R w with w[n, k] = scale[n] q[n, k], q in -127 to 127, and R a rotation of the inputs in blocks of 64.

    scale[n] is the largest magnitude of the rotated row n / 127, see csrc/int8.h; products rotate their input as well.
    `data` are bytes in the layout of csrc/int8.h, the only copy. `dtype` is that of `rows`, float32 or bfloat16. A
    `gated` weight is gate [N / 2, K] over up [N / 2, K], packed so that one product gives silu(gate) · up.
    """

    data: torch.Tensor
    shape: tuple[int, int]
    dtype: torch.dtype
    gated: bool = False

    @classmethod
    def quantize(cls, parts: Sequence[torch.Tensor | GGUFTensor], dtype: torch.dtype, *, gated: bool = False) -> "Int8":
        """The rows of all `parts`, each [N of the part, K] of any floating-point or GGUF type, one after the other.

        Each weight is read once, as stored, and rounded once.

        Args:
            parts: one K, 2-dimensional; of a gated weight an even N in all.
            dtype: of `rows`.

        Raises:
            ValueError: a weight is NaN or infinite.
        """
        assert extension is not None
        stored = [StoredRows.of(part) for part in parts]
        num_weights, num_inputs = sum(rows.num_rows for rows in stored), stored[0].num_inputs
        assert all(rows.num_inputs == num_inputs for rows in stored) and not (gated and num_weights % 2)
        num_outputs = num_weights // 2 if gated else num_weights
        data = huge_page_bytes(extension.int8_packed_bytes(num_outputs, num_inputs, gated))
        data[-extension.int8_packed_bytes(1, num_inputs, gated) :].zero_()  # outputs that fill up the last panel
        start = 0
        for rows in stored:
            finite = extension.int8_pack(
                rows.address, rows.row_bytes, rows.type, rows.num_rows, num_inputs, start, num_outputs, gated,
                data.data_ptr(),
            )  # fmt: skip
            if not finite:
                raise ValueError("a weight is NaN or infinite; the file is damaged")
            start += rows.num_rows
        return cls(data, (num_weights, num_inputs), dtype, gated)

    @property
    def nbytes(self) -> int:
        """Memory held, padding included."""
        return self.data.nbytes

    def rows(self, ids: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Rows `ids` [T] int64, each in [0, N): [T, K]. An embedding's lookup.

        `out` [T, K] contiguous, float32 or bfloat16, is written to; a new tensor of `dtype` by default.
        """
        if out is None:
            out = torch.empty(ids.numel(), self.shape[1], dtype=self.dtype)
        return self._unpack(ids, out)

    def dequantize(self) -> torch.Tensor:
        """[N, K] float32, a new tensor."""
        return self._unpack(torch.arange(self.shape[0]), torch.empty(self.shape, dtype=torch.float32))

    def _unpack(self, ids: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        assert extension is not None and ids.dtype is torch.int64 and ids.is_contiguous()
        num_weights, num_inputs = self.shape
        assert out.shape == (ids.numel(), num_inputs) and out.is_contiguous()
        inside = extension.int8_unpack_rows(
            self.data.data_ptr(), ids.data_ptr(), ids.numel(), num_weights // 2 if self.gated else num_weights,
            num_inputs, self.gated, out.data_ptr(), ELEMENT_TYPES[out.dtype],
        )  # fmt: skip
        assert inside, f"row ids must lie in [0, {num_weights})"
        return out
