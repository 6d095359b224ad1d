"""One file per model family, made of shared layers."""

from pelton.layers.context import LayerContext
from pelton.model_config import ModelInfo
from pelton.models.llama import LlamaForCausalLM

MODELS = {
    "LlamaForCausalLM": LlamaForCausalLM,
    "MistralForCausalLM": LlamaForCausalLM,
    "Qwen2ForCausalLM": LlamaForCausalLM,
    "Qwen3ForCausalLM": LlamaForCausalLM,
}


def build_model(info: ModelInfo, context: LayerContext) -> LlamaForCausalLM:
    """The model of `info.architecture` without weights; its tensors are filled by `weights.load`."""
    if info.architecture not in MODELS:
        raise ValueError(
            f"architecture {info.architecture!r} is not supported; supported are {', '.join(sorted(MODELS))}"
        )
    return MODELS[info.architecture](context, info)
