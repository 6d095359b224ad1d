"""Dequantization against the reference implementation in llama.cpp's gguf package."""

import gguf
import numpy as np
import pytest
import torch

from pelton.formats.gguf import SUPPORTED_TYPES, dequantize

BLOCK_TYPES = ["Q8_0", "Q4_0", "Q4_1"]


def quantized(type_name, shape, seed=0):
    """(bytes as a tensor, what the gguf package makes of them in float32)."""
    type_id = gguf.GGMLQuantizationType[type_name]
    weight = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    packed = gguf.quants.quantize(weight, type_id)
    raw = torch.from_numpy(np.ascontiguousarray(packed).view(np.uint8).reshape(-1).copy())
    return raw, torch.from_numpy(gguf.quants.dequantize(packed, type_id).copy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("type_name", SUPPORTED_TYPES)
def test_equals_the_gguf_package(type_name, dtype):
    # More blocks than are converted at once, and not a multiple of it.
    raw, expected = quantized(type_name, (300, 512) if type_name in BLOCK_TYPES else (30, 7))
    weight = dequantize(raw, type_name, expected.shape, dtype)
    assert weight.dtype == dtype
    assert torch.equal(weight, expected.to(dtype))


@pytest.mark.parametrize("type_name", BLOCK_TYPES)
def test_every_bit_pattern_equals_the_gguf_package(type_name):
    type_id = gguf.GGMLQuantizationType[type_name]
    block_bytes = gguf.GGML_QUANT_SIZES[type_id][1]
    blocks = np.random.default_rng(1).integers(0, 256, size=(4096, block_bytes), dtype=np.uint8)
    scales = blocks[:, :4].view(np.float16)
    blocks = blocks[np.isfinite(scales).all(axis=1)]
    expected = torch.from_numpy(gguf.quants.dequantize(blocks, type_id).copy())
    raw = torch.from_numpy(blocks.reshape(-1).copy())
    assert torch.equal(dequantize(raw, type_name, expected.shape, torch.float32), expected)


@pytest.mark.parametrize("type_name", BLOCK_TYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_scale_that_is_not_finite_is_refused(type_name, bad):
    raw, expected = quantized(type_name, (64, 512))
    raw.view(torch.float16)[raw.numel() // 64 * 5 // 2] = bad  # the scale of the first block of row 5
    with pytest.raises(ValueError, match="NaN or infinite"):
        dequantize(raw, type_name, expected.shape, torch.float32)


def test_a_minimum_that_is_not_finite_is_refused():
    raw, expected = quantized("Q4_1", (4, 32))
    raw.view(torch.float16)[1] = np.nan
    with pytest.raises(ValueError, match="NaN or infinite"):
        dequantize(raw, "Q4_1", expected.shape, torch.float32)


def test_a_type_that_is_not_supported_is_named():
    with pytest.raises(ValueError, match="type Q6_K is not supported yet; supported: F32"):
        dequantize(torch.zeros(210, dtype=torch.uint8), "Q6_K", (1, 256), torch.float32)


def test_dense_data_is_not_copied():
    raw = torch.zeros(16, dtype=torch.uint8)
    assert dequantize(raw, "F32", (2, 2), torch.float32).data_ptr() == raw.data_ptr()
