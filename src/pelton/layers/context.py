"""LayerContext, what a layer is built with, and Batch, what a forward pass is given. Nothing is global.

Shapes: T tokens of the step, R rows, S sampled rows, P pages of the longest row.
"""

from dataclasses import dataclass

import torch

from pelton.layers.scratch import Scratch
from pelton.ops.kv import KVCache

LayerKV = KVCache


@dataclass(frozen=True, slots=True)
class LayerContext:
    """`dtype` is that of activations and dense weights; `max_model_len` bounds positions.

    The residual stream is float32 whatever `dtype` is. `scratch` is where layers put their results. `quantize` is
    what becomes of weights when they are loaded, `stored` whether quantized ones stay as they are, as in EngineConfig.
    """

    dtype: torch.dtype
    device: torch.device
    max_model_len: int
    scratch: Scratch
    quantize: str = "none"
    stored: bool = False

    @property
    def input_dtype(self) -> torch.dtype:
        """What norms and gates give to the product after them. Integer products round that to int8 themselves: rounding
        it to bfloat16 before would add a fifth to their error."""
        return torch.float32 if self.stored or self.quantize != "none" else self.dtype


@dataclass(frozen=True, slots=True)
class Batch:
    """A Plan as tensors. Rows are packed without padding: row r owns tokens row_starts[r]:row_starts[r + 1]."""

    token_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64
    slots: torch.Tensor  # [T] int64, page * page_size + offset
    row_starts: torch.Tensor  # [R + 1] int32
    context_lens: torch.Tensor  # [R] int32, keys that the row's last token sees
    page_table: torch.Tensor  # [R, P] int32
    sample_indices: torch.Tensor  # [S] int64, packed positions of the tokens to sample after
