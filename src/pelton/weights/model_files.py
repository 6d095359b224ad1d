"""ModelFiles: what stands beside the weights of a model on disk: its configuration, tokenizer and name."""

import json
import re
from functools import cached_property
from pathlib import Path
from typing import Any

from pelton.model_config import ModelInfo
from pelton.tokenizer import Tokenizer
from pelton.types import JsonObject, SamplingDefaults
from pelton.weights.generation_config import from_generation_config, from_gguf_metadata
from pelton.weights.gguf_config import gguf_config
from pelton.weights.gguf_file import GGUFFile

_QUANTIZATION_SUFFIX = re.compile(r"[.-](I?Q\d\w*|F16|BF16|F32|FP16|FP32)$", re.IGNORECASE)


class ModelFiles:
    """A GGUF file, or a directory with config.json and tokenizer.json. Files are read when first asked for."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def name(self) -> str:
        """The name to serve the model under: the directory's, or the file's without the quantization's."""
        path = self.path.resolve()
        return path.name if path.is_dir() else _QUANTIZATION_SUFFIX.sub("", path.stem)

    def info(self) -> ModelInfo:
        """What the configuration says, with the end-of-sequence ids of generation_config.json added.

        Raises:
            ValueError: a file is missing, damaged or describes a model that is not supported.
        """
        if not self.path.is_dir():
            config, source = gguf_config(self._gguf), self.path
        else:
            source = self.path / "config.json"
            config = _read_json(source)
            _add_eos_ids(config, self._generation_config)
        try:
            return ModelInfo.from_hf(config)
        except ValueError as error:
            raise ValueError(f"{source}: {error}") from None

    def sampling_defaults(self) -> SamplingDefaults:
        """The sampling that the files recommend, by the fields of SamplingParams; none where they say nothing.

        A value that no request could ask for is left out with a warning.
        """
        if self.path.is_dir():
            return from_generation_config(self._generation_config, self._generation_config_path)
        return from_gguf_metadata(self._gguf.metadata, self.path)

    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; ValueError if it is missing, damaged or of a kind that is not supported."""
        if self.path.is_dir():
            return Tokenizer.from_directory(self.path)
        metadata = self._gguf.metadata  # its own errors name the file
        try:
            return Tokenizer.from_gguf(metadata)
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from None

    @property
    def _generation_config_path(self) -> Path:
        return self.path / "generation_config.json"

    @cached_property
    def _generation_config(self) -> JsonObject:
        """Empty where there is none."""
        path = self._generation_config_path
        return _read_json(path) if path.exists() else {}

    @cached_property
    def _gguf(self) -> GGUFFile:
        return GGUFFile(self.path)


def _read_json(path: Path) -> JsonObject:
    try:
        value: Any = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file") from None
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path}: not a JSON object")
    return value  # pyright: ignore[reportUnknownVariableType]


def _add_eos_ids(config: JsonObject, generation: JsonObject) -> None:
    """Chat models often end turns with a token that generation_config.json alone names."""
    added = generation.get("eos_token_id")
    if added is None:
        return
    present = config.get("eos_token_id")
    as_lists = [value if isinstance(value, list) else [value] for value in (present, added) if value is not None]
    config["eos_token_id"] = [token for ids in as_lists for token in ids]
