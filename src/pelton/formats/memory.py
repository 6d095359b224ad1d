"""Memory that packed weights live in."""

import mmap

import torch

_HUGE_PAGE = 2 * 1024 * 1024


def huge_page_bytes(num_bytes: int) -> torch.Tensor:
    """Uninitialized bytes at a 64-byte boundary; large ones in huge pages, where address translation costs less."""
    if num_bytes < _HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(num_bytes, dtype=torch.uint8)
    region = mmap.mmap(-1, num_bytes + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    region.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(region, dtype=torch.uint8)  # keeps the mapping alive
    start = -whole.data_ptr() % _HUGE_PAGE
    return whole[start : start + num_bytes]
