"""Scratch: the memory of a forward pass's intermediate results."""

import torch

from pelton.formats.memory import huge_page_bytes

_ALIGNMENT = 64
_FIRST_BLOCK = 1 << 20  # bytes

Mark = tuple[torch.Tensor, int]


class Scratch:
    """Hands out memory one piece after the other and takes it back in bulk, in place of an allocation for each.

    A pass that makes the same calls again gets the same addresses, as long as `block` is the same. A tensor is valid
    until a mark from before it is released; its contents are not initialized.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._used = 0
        self._replace(_FIRST_BLOCK)

    @property
    def block(self) -> torch.Tensor:
        """The memory that pieces are cut from now, uint8. A larger one replaces it when it is full."""
        return self._block

    def empty(self, num_rows: int, size: int, dtype: torch.dtype) -> torch.Tensor:
        """[num_rows, size] contiguous, at a 64-byte boundary."""
        start = self._used
        end = start + num_rows * size * dtype.itemsize
        if end > self._block.nbytes:
            # The full block stays alive as long as tensors in it do.
            self._replace(max(2 * self._block.nbytes, end - start))
            start, end = 0, end - start
        self._used = -(-end // _ALIGNMENT) * _ALIGNMENT
        return torch.as_strided(self._typed[dtype], (num_rows, size), (size, 1), start // dtype.itemsize)

    def mark(self) -> Mark:
        """What `release` takes to give back everything handed out from here on."""
        return self._block, self._used

    def release(self, mark: Mark) -> None:
        block, used = mark
        # A block that came after the mark holds nothing from before it.
        self._used = used if block is self._block else 0

    def reset(self) -> None:
        """Give back everything, at the beginning of a pass."""
        self._used = 0

    def _replace(self, num_bytes: int) -> None:
        if self._device.type == "cpu":
            self._block = huge_page_bytes(num_bytes // _ALIGNMENT * _ALIGNMENT + _ALIGNMENT)
        else:
            self._block = torch.empty(num_bytes // _ALIGNMENT * _ALIGNMENT, dtype=torch.uint8, device=self._device)
        self._typed = {dtype: self._block.view(dtype) for dtype in (torch.float32, torch.bfloat16)}
