"""The Llama family: Llama 2 and 3, SmolLM2, Mistral, Qwen2 and Qwen3 differ in switches of ModelInfo only.

Shapes: T tokens, S sampled tokens, D hidden size, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import nn

from pelton.layers.attention import Attention
from pelton.layers.context import Batch, LayerContext, LayerKV
from pelton.layers.embedding import Embedding
from pelton.layers.mlp import GatedMLP
from pelton.layers.norm import RMSNorm
from pelton.layers.rope import rotary_table
from pelton.model_config import ModelInfo


class LlamaLayer(nn.Module):
    """Attention and feed-forward, each behind a norm and added to the residual stream."""

    def __init__(self, context: LayerContext, info: ModelInfo, cos_sin: torch.Tensor, layer: int) -> None:
        super().__init__()
        self._scratch = context.scratch
        self.input_layernorm = RMSNorm(context, info.hidden_size, info.rms_norm_eps)
        self.self_attn = Attention(context, info, cos_sin, layer)
        self.post_attention_layernorm = RMSNorm(context, info.hidden_size, info.rms_norm_eps)
        self.mlp = GatedMLP(context, info.hidden_size, info.intermediate_size, bias=info.mlp_bias)

    def forward(self, stream: torch.Tensor, batch: Batch, kv: LayerKV) -> None:
        """Take the residual stream [T, D] float32 through the layer, **in place**."""
        mark = self._scratch.mark()
        self.self_attn(self.input_layernorm(stream), stream, batch, kv)
        self.mlp(self.post_attention_layernorm(stream), stream)
        self._scratch.release(mark)


class LlamaModel(nn.Module):
    """Embedding, layers, last norm."""

    def __init__(self, context: LayerContext, info: ModelInfo) -> None:
        super().__init__()
        cos_sin = rotary_table(info, context.max_model_len, context.device)
        self.embed_tokens = Embedding(context, info.vocab_size, info.hidden_size)
        self.layers = nn.ModuleList(
            LlamaLayer(context, info, cos_sin, layer) for layer in range(info.num_hidden_layers)
        )
        self.norm = RMSNorm(context, info.hidden_size, info.rms_norm_eps)

    def forward(self, batch: Batch, kv: Sequence[LayerKV]) -> torch.Tensor:
        """-> the residual stream [T, D] float32 before the last norm; `kv` has an entry a layer."""
        stream = self.embed_tokens(batch.token_ids)
        for layer, layer_kv in zip(self.layers, kv, strict=True):
            layer(stream, batch, layer_kv)
        return stream


class LlamaForCausalLM(nn.Module):
    """A decoder with its output head. `tied_names` are checkpoint tensors that another weight stands for."""

    def __init__(self, context: LayerContext, info: ModelInfo) -> None:
        super().__init__()
        self._scratch = context.scratch
        self.model = LlamaModel(context, info)
        self.lm_head = None if info.tie_word_embeddings else Embedding(context, info.vocab_size, info.hidden_size)
        self.tied_names = frozenset({"lm_head.weight"} if info.tie_word_embeddings else ())

    def forward(self, batch: Batch, kv: Sequence[LayerKV]) -> torch.Tensor:
        """-> the residual stream [T, D] float32. Results of this pass and of `logits` are valid until the next pass."""
        self._scratch.reset()
        return self.model(batch, kv)

    def logits(self, stream: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Of the `rows` [S] int64 of the stream [T, D]: [S, V] float32."""
        head = self.model.embed_tokens if self.lm_head is None else self.lm_head
        return head.logits(self.hidden(stream, rows))

    def hidden(self, stream: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Of the `rows` [S] int64 of the stream [T, D]: [S, D] after the last norm."""
        return self.model.norm(stream, rows)
