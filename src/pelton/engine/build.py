"""Wires an Engine from its parts: model, weights, KV cache, runner, scheduler."""

import functools
import importlib
import logging
import os
import time
from pathlib import Path

import torch

from pelton.config import EngineConfig, chosen
from pelton.engine.engine import Engine
from pelton.engine.grammars import Compiler, Grammars
from pelton.layers.context import LayerContext
from pelton.layers.scratch import Scratch
from pelton.model_config import ModelInfo
from pelton.models import build_model
from pelton.models.llama import LlamaForCausalLM
from pelton.runner.kv_cache import allocate_layers
from pelton.runner.runner import Runner
from pelton.sched.pages import PagePool
from pelton.sched.scheduler import Scheduler
from pelton.weights.checkpoint import open_checkpoint
from pelton.weights.load import load_weights

logger = logging.getLogger(__name__)

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
KV_DTYPES = {**_DTYPES, "int8": torch.int8, "fp8": torch.float8_e4m3fn}


def build_engine(config: EngineConfig, info: ModelInfo, path: Path) -> Engine:
    """Load the model at `path` and put an engine around it.

    Args:
        config: resolved, without "auto".

    Raises:
        ValueError: the checkpoint does not fit the model; the message names the tensor.
    """
    started = time.monotonic()
    torch.set_num_threads(chosen(config.num_threads))
    model, context = load_model(config, info, path)
    num_pages = chosen(config.kv_cache_memory) // (info.kv_bytes_per_token(config.kv_cache_dtype) * config.page_size)
    kv = allocate_layers(info, num_pages, config.page_size, KV_DTYPES[config.kv_cache_dtype], context.device)
    scheduler = Scheduler(
        PagePool(num_pages, config.page_size, secret=os.urandom(16)),
        max_batch_tokens=chosen(config.max_num_batched_tokens),
        max_running=config.max_num_seqs,
        max_model_len=context.max_model_len,
        eos_token_ids=info.eos_token_ids,
        enable_prefix_caching=config.enable_prefix_caching,
    )
    logger.info("weights loaded in %.2f s, %d pages of KV", time.monotonic() - started, num_pages)
    grammars = Grammars(functools.partial(load_compiler, info, path), info.vocab_size, info.eos_token_ids)
    return Engine(scheduler, Runner(model, kv, info, config.page_size, context), grammars)


def load_compiler(info: ModelInfo, path: Path) -> Compiler:
    """What compiles grammars for the model at `path`. Imports the tokenizer, which an engine starts faster without."""
    model_files = importlib.import_module("pelton.weights.model_files")
    matcher = importlib.import_module("pelton.structured.matcher")
    tokenizer = model_files.ModelFiles(path).tokenizer()
    return matcher.CompiledGrammars(tokenizer, info.vocab_size, info.eos_token_ids)


def load_model(config: EngineConfig, info: ModelInfo, path: Path) -> tuple[LlamaForCausalLM, LayerContext]:
    """The model at `path` with its weights as the resolved configuration wants them; raises as build_engine does."""
    device, dtype = torch.device(config.device), _DTYPES[config.dtype]
    context = LayerContext(
        dtype=dtype,
        device=device,
        max_model_len=chosen(config.max_model_len),
        scratch=Scratch(device),
        quantize=config.quantize,
        stored=config.weight_format == "native",
    )
    with torch.inference_mode():
        model = build_model(info, context)
        source_dtype = dtype if config.quantize == "none" else None
        checkpoint = open_checkpoint(path, source_dtype, stored=context.stored)
        load_weights(model, checkpoint, model.tied_names)
    return model, context
