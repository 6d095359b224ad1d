"""The tensors behind the page ids of the PagePool: one cache a layer."""

import torch

from pelton.formats.memory import huge_page_bytes
from pelton.layers.context import LayerKV
from pelton.model_config import ModelInfo
from pelton.ops.kv import page_bytes, view_kv


def allocate_layers(
    info: ModelInfo, num_pages: int, page_size: int, dtype: torch.dtype, device: torch.device
) -> list[LayerKV]:
    """Keys and values of every layer, in the layout of `ops/kv.py`. On a CPU untouched pages cost no memory."""
    num_heads, head_dim = info.num_key_value_heads, info.head_dim
    num_bytes = num_pages * page_bytes(num_heads, page_size, head_dim, dtype)
    return [
        view_kv(_allocate(num_bytes, device), num_heads, page_size, head_dim, dtype)
        for _ in range(info.num_hidden_layers)
    ]


def _allocate(num_bytes: int, device: torch.device) -> torch.Tensor:
    if device.type == "cpu":
        return huge_page_bytes(num_bytes)  # attention reads pages from all over the cache
    return torch.empty(num_bytes, dtype=torch.uint8, device=device)
