"""Rotary position tables (RoFormer, arXiv 2104.09864) with the scalings that Llama-family checkpoints use."""

import math
from collections.abc import Mapping
from typing import Any

import torch

from pelton.model_config import ModelInfo


def rotary_table(info: ModelInfo, max_positions: int, device: torch.device) -> torch.Tensor:
    """Cosines and sines of every position.

    Returns:
        [max_positions, head_dim] float32: the first half of a row are cosines, the second half sines.

    Raises:
        ValueError: an unknown kind of scaling.
    """
    frequencies = scale_frequencies(inverse_frequencies(info.head_dim, info.rope_theta), info.rope_scaling)
    factors = info.extra.get("rope_freq_factors")  # how GGUF stores Llama 3's scaling, already worked out
    if factors is not None:
        frequencies = frequencies / torch.tensor(factors, dtype=torch.float32)
    angles = torch.outer(torch.arange(max_positions, dtype=torch.float32), frequencies)
    return torch.cat([angles.cos(), angles.sin()], dim=-1).to(device)


def inverse_frequencies(head_dim: int, theta: float) -> torch.Tensor:
    """theta^(-2i/head_dim) for i below head_dim / 2, float32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).to(torch.float32) / head_dim
    return 1.0 / (theta**exponents)


def scale_frequencies(frequencies: torch.Tensor, scaling: Mapping[str, Any] | None) -> torch.Tensor:
    """Apply a checkpoint's rope scaling.

    "linear" divides by the factor; "llama3" divides long wavelengths by it, keeps short ones and blends between
    (Llama 3.1's reference code).
    """
    kind = "default" if scaling is None else scaling.get("rope_type", scaling.get("type", "default"))
    if scaling is None or kind == "default":
        return frequencies
    if kind == "linear":
        return frequencies / scaling["factor"]
    if kind == "llama3":
        return _scale_llama3(frequencies, scaling)
    raise ValueError(f"rope scaling of type {kind!r} is not supported; supported are default, linear and llama3")


def _scale_llama3(frequencies: torch.Tensor, scaling: Mapping[str, Any]) -> torch.Tensor:
    factor, context = scaling["factor"], scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    wavelengths = 2 * math.pi / frequencies
    smooth = (context / wavelengths - low) / (high - low)
    blended = (1 - smooth) * frequencies / factor + smooth * frequencies
    scaled = torch.where(wavelengths > context / low, frequencies / factor, frequencies)
    is_medium = (wavelengths <= context / low) & (wavelengths >= context / high)
    return torch.where(is_medium, blended, scaled)
