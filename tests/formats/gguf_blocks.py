"""Random GGUF tensors of any bit pattern, and what the gguf package makes of them."""

import gguf
import numpy as np
import torch

from pelton.formats.gguf import GGUFTensor

BLOCK_TYPES = ["Q4_0", "Q4_1", "Q8_0"]


def stored(type_name: str, num_outputs: int, num_inputs: int, seed: int = 0) -> tuple[GGUFTensor, torch.Tensor]:
    """(a tensor with every code and scales of about 1 / 16 to 1 / 4, float32 [num_outputs, num_inputs])."""
    random = np.random.default_rng(seed)
    type_id = gguf.GGMLQuantizationType[type_name]
    num_blocks, block_bytes = num_outputs * num_inputs // 32, gguf.GGML_QUANT_SIZES[type_id][1]
    blocks = random.integers(0, 256, size=(num_blocks, block_bytes), dtype=np.uint8)
    halves = blocks.view(np.float16)
    halves[:, 0] = random.uniform(1 / 16, 1 / 4, num_blocks) * random.choice([-1, 1], num_blocks)
    if type_name == "Q4_1":
        halves[:, 1] = random.normal(size=num_blocks)
    values = gguf.quants.dequantize(blocks.reshape(num_outputs, -1), type_id)
    tensor = GGUFTensor(torch.from_numpy(blocks.reshape(-1)), type_name, (num_outputs, num_inputs))
    return tensor, torch.from_numpy(np.ascontiguousarray(values))
