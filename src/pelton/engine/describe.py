"""What is known of a model before its weights are loaded: everything a client of the engine needs."""

import dataclasses
import logging
from dataclasses import dataclass
from pathlib import Path

from pelton.config import EngineConfig, chosen, resolve
from pelton.model_config import ModelInfo
from pelton.tokenizer import Tokenizer
from pelton.types import SamplingDefaults
from pelton.weights.generation_config import overridden
from pelton.weights.hub import locate
from pelton.weights.model_files import ModelFiles

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """`config` is resolved; `info.eos_token_ids` has the tokenizer's end tokens too."""

    path: Path
    info: ModelInfo
    config: EngineConfig
    tokenizer: Tokenizer


def describe(config: EngineConfig) -> ModelDescription:
    """Find the model, downloading it if it is on the Hub, and read all but its weights.

    Raises:
        ValueError: the model or a setting cannot work; the message names it and the fix.
    """
    path = locate(config.model, revision=config.revision, download_dir=config.download_dir)
    files = ModelFiles(path)
    tokenizer = files.tokenizer()
    if config.chat_template is not None:
        tokenizer.replace_chat_template(_read_template(config.chat_template))
    info = files.info()
    ends = dict.fromkeys((*info.eos_token_ids, *tokenizer.eos_token_ids))
    info = dataclasses.replace(info, eos_token_ids=tuple(ends))
    resolved = resolve(config, info)
    info = dataclasses.replace(info, sampling_defaults=_sampling_defaults(resolved, files))
    return ModelDescription(path, info, resolved, tokenizer)


def _sampling_defaults(config: EngineConfig, files: ModelFiles) -> SamplingDefaults:
    defaults = dict(files.sampling_defaults() if config.generation_config == "auto" else {})
    if config.override_generation_config is not None:
        defaults = dict(overridden(defaults, config.override_generation_config))
    if defaults.get("max_tokens", 0) >= chosen(config.max_model_len):
        del defaults["max_tokens"]  # the context ends the output earlier
    if defaults:
        shown = ", ".join(f"{name} {value}" for name, value in defaults.items())
        logger.info("sampling defaults of the model: %s", shown)
    return defaults


def _read_template(path: str) -> str:
    try:
        return Path(path).expanduser().read_text()
    except OSError as error:
        raise ValueError(f"chat_template {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"chat_template {path}: not UTF-8 text") from None
