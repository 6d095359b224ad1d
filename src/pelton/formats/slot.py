"""WeightSlot: where one tensor of a checkpoint goes in a model."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from pelton.formats.gguf import GGUFTensor


@dataclass(frozen=True, slots=True)
class WeightSlot:
    """A place for one checkpoint tensor.

    `shape` is the tensor's expected shape. `load` takes it in, or `load_stored` does where a layer can use a tensor
    as it is stored; together they may be called once. A module that owns weights has
    `weight_slots(path) -> dict[name, WeightSlot]`, where `path` is the module's own dotted path and the names are the
    Hugging Face names of the checkpoint.
    """

    shape: tuple[int, ...]
    load: Callable[[torch.Tensor], object]
    load_stored: Callable[[GGUFTensor], object] | None = None
