"""From a checkpoint into a model: every tensor once, nothing missing, nothing left over."""

import logging
from collections.abc import Iterable, Mapping
from typing import Protocol

import torch
from torch import nn

from pelton.formats.gguf import GGUFTensor
from pelton.formats.slot import WeightSlot

logger = logging.getLogger(__name__)

_MAX_NAMED = 5
# Buffers that some exporters write and that the model computes itself.
_COMPUTED_SUFFIXES = (".rotary_emb.inv_freq", ".rotary_emb.cos_cached", ".rotary_emb.sin_cached")


class TensorSource(Protocol):
    """What `load_weights` needs of a checkpoint."""

    @property
    def names(self) -> Mapping[str, tuple[int, ...]]: ...

    def tensors(self) -> Iterable[tuple[str, torch.Tensor | GGUFTensor]]: ...


def load_weights(model: nn.Module, checkpoint: TensorSource, tied_names: frozenset[str] = frozenset()) -> None:
    """Fill the model's weight slots. Names and shapes are checked before any tensor is read.

    Raises:
        ValueError: a tensor is missing, left over or of the wrong shape; the message names it.
    """
    slots = weight_slots(model)
    ignored = {name for name in checkpoint.names if name in tied_names or name.endswith(_COMPUTED_SUFFIXES)}
    offered = {name: shape for name, shape in checkpoint.names.items() if name not in ignored}
    _check_names(slots, offered)
    for name in sorted(tied_names & checkpoint.names.keys()):
        logger.warning("the checkpoint's %s is not used: by tie_word_embeddings the embedding stands for it", name)
    for name, tensor in checkpoint.tensors():
        if name not in ignored:
            _fill(slots[name], tensor, name)


def _fill(slot: WeightSlot, tensor: torch.Tensor | GGUFTensor, name: str) -> None:
    if not isinstance(tensor, GGUFTensor):
        slot.load(tensor)
        return
    assert slot.load_stored is not None, f"{name} takes plain tensors only"
    slot.load_stored(tensor)


def weight_slots(model: nn.Module) -> dict[str, WeightSlot]:
    """The weight slots of all modules, by checkpoint name."""
    slots: dict[str, WeightSlot] = {}
    for path, module in model.named_modules():
        own_slots = getattr(module, "weight_slots", None)
        if own_slots is not None:
            slots.update(own_slots(path))
    return slots


def _check_names(slots: Mapping[str, WeightSlot], offered: Mapping[str, tuple[int, ...]]) -> None:
    if missing := sorted(slots.keys() - offered.keys()):
        raise ValueError(f"the checkpoint lacks {_listing(missing)}")
    if surplus := sorted(offered.keys() - slots.keys()):
        raise ValueError(f"the checkpoint has tensors that this model does not use: {_listing(surplus)}")
    for name, slot in slots.items():
        if tuple(offered[name]) != slot.shape:
            raise ValueError(f"tensor {name} has shape {list(offered[name])}, the model needs {list(slot.shape)}")


def _listing(names: list[str]) -> str:
    shown = ", ".join(names[:_MAX_NAMED])
    return shown if len(names) <= _MAX_NAMED else f"{shown} and {len(names) - _MAX_NAMED} more"
