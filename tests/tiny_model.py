"""A tiny random model on disk as transformers writes it, with a byte-level tokenizer, and engines around such ones."""

import json
import socket
import threading
from pathlib import Path
from typing import Any

import torch
import transformers

from pelton.engine.build import build_engine
from pelton.engine.messages import Start
from pelton.engine.process import run

from fakes import CHAT_TEMPLATE, tiny_tokenizer

SIZES: dict[str, Any] = {
    "vocab_size": 288,  # more than the tokenizer has, as many models
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": 265,  # <|im_end|>
}


def save_tiny_model(
    folder: Path, config: transformers.PretrainedConfig | None = None, **options: Any
) -> torch.nn.Module:
    """Write weights, config.json and tokenizer to `folder`; the model that transformers has of them.

    `options` go to save_pretrained, such as max_shard_size.
    """
    torch.manual_seed(5)
    config = config or transformers.LlamaConfig(**SIZES)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():  # as initialized, all tokens would be equally likely
            scale = 0.2 if parameter.dim() > 1 else 0.3
            parameter.copy_(torch.randn_like(parameter) * scale + (parameter.dim() == 1))
    model.eval().save_pretrained(folder, **options)
    (folder / "tokenizer.json").write_text(tiny_tokenizer()._backend.to_str(), encoding="utf-8")
    names = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(names), encoding="utf-8")
    return model


class InProcessHost:
    """An EngineHost that runs the real engine in a thread: no process to start, no torch to import."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def launch(self) -> None:
        """ProcessHost has it; there is nothing to do ahead of `start`."""

    def start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        self._thread = threading.Thread(target=self._run, args=(theirs,), daemon=True)
        self._thread.start()
        return ours

    def stop(self, *, at_once: bool = False) -> None:
        if self._thread is not None:
            self._thread.join(10)
            assert not self._thread.is_alive(), "the engine did not end when its socket closed"

    def _run(self, connection: socket.socket) -> None:
        with connection:
            run(connection, _build)


def _build(start: Start) -> Any:
    return build_engine(start.config, start.info, Path(start.path))
