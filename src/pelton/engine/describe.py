"""What is known of a model before its weights are loaded: everything a client of the engine needs."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from pelton.config import EngineConfig, resolve
from pelton.model_config import ModelInfo
from pelton.tokenizer import Tokenizer
from pelton.weights.hub import locate
from pelton.weights.model_files import ModelFiles


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
    return ModelDescription(path, info, resolve(config, info), tokenizer)


def _read_template(path: str) -> str:
    try:
        return Path(path).expanduser().read_text()
    except OSError as error:
        raise ValueError(f"chat_template {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"chat_template {path}: not UTF-8 text") from None
