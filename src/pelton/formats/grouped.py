"""GroupedAffine: a weight of 4 or 8 bits in groups of 32 inputs, as a GGUF file stores it or quantized when loaded.

Shapes: N outputs, K inputs, T tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pelton.formats.gguf import GGUFTensor
from pelton.formats.memory import huge_page_bytes
from pelton.formats.stored import StoredRows
from pelton.kernels.cpu import ELEMENT_TYPES, extension
from pelton.ops.grouped import GROUP_INPUTS, ROTATED_INPUTS, GroupedKind

_KINDS = {
    "Q4_0": GroupedKind.FOUR_BITS,
    "Q4_1": GroupedKind.FOUR_BITS_MINIMUM,
    "Q8_0": GroupedKind.EIGHT_BITS,
}


@dataclass(frozen=True, slots=True, eq=False)
class GroupedAffine:
    """w[n, k] = scale[n, k // 32] q[n, k] (+ minimum[n, k // 32]), scales and minimums in float16.

    `data` are bytes in the layout of csrc/grouped.h, the only copy. `dtype` is that of `rows`, float32 or bfloat16.
    Of a `rotated` weight, w above is the weight times a rotation of its inputs in blocks of 64; products rotate their
    input as well. A `gated` weight is gate [N / 2, K] over up [N / 2, K], packed so that one product gives
    silu(gate) · up.
    """

    data: torch.Tensor
    shape: tuple[int, int]
    kind: GroupedKind
    dtype: torch.dtype
    rotated: bool = False
    gated: bool = False

    @staticmethod
    def can_hold(type: str, shape: Sequence[int]) -> bool:
        """Whether there is a kernel for a GGUF tensor of this type and row-major shape."""
        return extension is not None and type in _KINDS and len(shape) == 2 and shape[1] % GROUP_INPUTS == 0

    @classmethod
    def from_gguf(cls, parts: Sequence[GGUFTensor], dtype: torch.dtype, *, gated: bool = False) -> "GroupedAffine":
        """The rows of all `parts`, one after the other, which have one type and one K, without loss.

        Args:
            parts: tensors for which `can_hold`; of a gated weight an even N in all.
            dtype: of `rows`.
        """
        types, widths = {part.type for part in parts}, {part.shape[1] for part in parts}
        assert extension is not None and len(types) == 1 and len(widths) == 1
        kind, num_inputs = _KINDS[types.pop()], widths.pop()
        num_weights = sum(part.shape[0] for part in parts)
        num_outputs = num_weights // 2 if gated else num_weights
        data = _empty(kind, num_weights, num_inputs, gated=gated)
        start = 0
        for part in parts:
            assert part.raw.is_contiguous()
            extension.grouped_pack(
                part.raw.data_ptr(), int(kind), part.shape[0], num_inputs, start, num_outputs, gated, data.data_ptr()
            )
            start += part.shape[0]
        return cls(data, (num_weights, num_inputs), kind, dtype, gated=gated)

    @classmethod
    def quantize(
        cls, parts: Sequence[torch.Tensor | GGUFTensor], dtype: torch.dtype, *, gated: bool = False
    ) -> "GroupedAffine":
        """The rows of all `parts` rounded to 4 bits with a minimum, which is searched for with the scale.

        They are rotated where K is a multiple of 64.

        Args:
            parts: [N of the part, K] of any floating-point or GGUF type, K a multiple of 32.
            dtype: of `rows`.
            gated: whether they are gate over up, an even N in all.

        Raises:
            ValueError: a weight is NaN, infinite or beyond float16.
        """
        assert extension is not None
        stored = [StoredRows.of(part) for part in parts]
        num_weights, num_inputs = sum(rows.num_rows for rows in stored), stored[0].num_inputs
        assert all(rows.num_inputs == num_inputs for rows in stored) and num_inputs % GROUP_INPUTS == 0
        kind, rotated = GroupedKind.FOUR_BITS_MINIMUM, num_inputs % ROTATED_INPUTS == 0
        num_outputs = num_weights // 2 if gated else num_weights
        data = _empty(kind, num_weights, num_inputs, gated=gated)
        start = 0
        for rows in stored:
            finite = extension.grouped_quantize(
                rows.address, rows.row_bytes, rows.type, rows.num_rows, num_inputs, rotated, start, num_outputs, gated,
                data.data_ptr(),
            )  # fmt: skip
            if not finite:
                raise ValueError("a weight is NaN, infinite or beyond float16; the file is damaged")
            start += rows.num_rows
        return cls(data, (num_weights, num_inputs), kind, dtype, rotated, gated)

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
        """[N, K] float32, for a weight from a GGUF file the values of formats.gguf.dequantize, a new tensor."""
        return self._unpack(torch.arange(self.shape[0]), torch.empty(self.shape, dtype=torch.float32))

    def _unpack(self, ids: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        assert extension is not None and ids.dtype is torch.int64 and ids.is_contiguous()
        num_weights, num_inputs = self.shape
        assert out.shape == (ids.numel(), num_inputs) and out.is_contiguous()
        inside = extension.grouped_unpack_rows(
            self.data.data_ptr(), int(self.kind), self.rotated, ids.data_ptr(), ids.numel(),
            num_weights // 2 if self.gated else num_weights, num_inputs, self.gated, out.data_ptr(),
            ELEMENT_TYPES[out.dtype],
        )  # fmt: skip
        assert inside, f"row ids must lie in [0, {num_weights})"
        return out


def _empty(kind: GroupedKind, num_weights: int, num_inputs: int, *, gated: bool) -> torch.Tensor:
    """Bytes of a packed weight, of which the last panel is zero: outputs that fill it up stay so."""
    assert extension is not None and not (gated and num_weights % 2)
    num_outputs = num_weights // 2 if gated else num_weights
    data = huge_page_bytes(extension.grouped_packed_bytes(int(kind), num_outputs, num_inputs, gated))
    data[-extension.grouped_packed_bytes(int(kind), 1, num_inputs, gated) :].zero_()
    return data
