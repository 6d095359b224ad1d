"""Small GGUF files, written by llama.cpp's own gguf package."""

import gguf
import numpy as np

SIZES = {"vocab": 24, "hidden": 64, "intermediate": 96, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16}


def write(path, *, architecture="llama", metadata=(), tensors=(), without=()):
    """A tiny model with random weights; returns its tensors as float32 arrays by GGUF name.

    `metadata` are (key, value, type or None) triples on top of, and `tensors` a dict of changes to, the usual ones.
    A tensor may be an array or an (array, quantization type name) pair; None leaves it out.
    """
    writer = gguf.GGUFWriter(path, architecture)
    keys = default_metadata(architecture) | {key: (value, kind) for key, value, kind in metadata}
    for key, (value, kind) in keys.items():
        if key not in without:
            writer.add_key_value(key, value, kind)
    all_tensors = default_tensors() | dict(tensors)
    for name, entry in all_tensors.items():
        if entry is not None:
            array, type_name = entry if isinstance(entry, tuple) else (entry, "F32")
            type_id = gguf.GGMLQuantizationType[type_name]
            writer.add_tensor(name, gguf.quants.quantize(array, type_id), raw_dtype=type_id)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return all_tensors


def default_metadata(architecture="llama"):
    unsigned, real = gguf.GGUFValueType.UINT32, gguf.GGUFValueType.FLOAT32
    return {
        f"{architecture}.context_length": (512, unsigned),
        f"{architecture}.embedding_length": (SIZES["hidden"], unsigned),
        f"{architecture}.block_count": (SIZES["layers"], unsigned),
        f"{architecture}.feed_forward_length": (SIZES["intermediate"], unsigned),
        f"{architecture}.attention.head_count": (SIZES["heads"], unsigned),
        f"{architecture}.attention.head_count_kv": (SIZES["kv_heads"], unsigned),
        f"{architecture}.attention.layer_norm_rms_epsilon": (1e-5, real),
        f"{architecture}.rope.freq_base": (20000.0, real),
        "tokenizer.ggml.tokens": ([f"token{i}" for i in range(SIZES["vocab"])], gguf.GGUFValueType.ARRAY),
        "tokenizer.ggml.bos_token_id": (1, unsigned),
        "tokenizer.ggml.eos_token_id": (2, unsigned),
    }


def default_tensors():
    random = np.random.default_rng(0)
    query, key = SIZES["heads"] * SIZES["head_dim"], SIZES["kv_heads"] * SIZES["head_dim"]
    hidden, intermediate = SIZES["hidden"], SIZES["intermediate"]
    shapes = {"token_embd.weight": (SIZES["vocab"], hidden), "output_norm.weight": (hidden,)}
    for layer in range(SIZES["layers"]):
        for name, shape in {
            "attn_norm": (hidden,),
            "attn_q": (query, hidden),
            "attn_k": (key, hidden),
            "attn_v": (key, hidden),
            "attn_output": (hidden, query),
            "ffn_norm": (hidden,),
            "ffn_gate": (intermediate, hidden),
            "ffn_up": (intermediate, hidden),
            "ffn_down": (hidden, intermediate),
        }.items():
            shapes[f"blk.{layer}.{name}.weight"] = shape
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
