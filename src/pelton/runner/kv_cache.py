"""The tensors behind the page ids of the PagePool: one pair a layer."""

import torch

from pelton.layers.context import LayerKV
from pelton.model_config import ModelInfo
from pelton.ops.kv import allocate_kv


def allocate_layers(
    info: ModelInfo, num_pages: int, page_size: int, dtype: torch.dtype, device: torch.device
) -> list[LayerKV]:
    """Keys and values of every layer, in the layout of `ops/kv.py`. On a CPU untouched pages cost no memory."""
    return [
        allocate_kv(num_pages, info.num_key_value_heads, page_size, info.head_dim, dtype, device)
        for _ in range(info.num_hidden_layers)
    ]
