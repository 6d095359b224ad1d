"""The small files beside a Hugging Face tokenizer.json: which tokens begin and end texts, and chat templates."""

from pathlib import Path
from typing import TypeVar

import msgspec
import tokenizers

from pelton.tokenizer.special import SpecialTokens


class _Token(msgspec.Struct):
    content: str


class _NamedTemplate(msgspec.Struct):
    name: str
    template: str


class _TokenizerConfig(msgspec.Struct):
    """What matters of tokenizer_config.json and special_tokens_map.json; their other keys are in tokenizer.json too."""

    bos_token: str | _Token | None = None
    eos_token: str | _Token | None = None
    chat_template: str | list[_NamedTemplate] | None = None


class _GenerationConfig(msgspec.Struct):
    eos_token_id: int | list[int] | None = None


def load_backend(path: Path) -> tokenizers.Tokenizer:
    """Read tokenizer.json of a directory; ValueError if it is missing or unreadable."""
    file = path / "tokenizer.json"
    if not file.is_file():
        hint = ""
        if (path / "tokenizer.model").is_file():
            hint = "; tokenizer.model alone (sentencepiece) is not supported yet, convert it with transformers"
        raise ValueError(f"no tokenizer.json in {path}{hint}")
    try:
        return tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise ValueError(f"cannot read {file}: {error}") from error


def load_special_tokens(path: Path, backend: tokenizers.Tokenizer) -> SpecialTokens:
    """What the files beside tokenizer.json say; tokenizer_config.json wins over special_tokens_map.json."""
    config = _read(path / "tokenizer_config.json", _TokenizerConfig)
    older = _read(path / "special_tokens_map.json", _TokenizerConfig)
    eos_token = _content(config.eos_token or older.eos_token)
    eos_id = None if eos_token is None else backend.token_to_id(eos_token)
    eos_ids = [] if eos_id is None else [eos_id]
    # Instruct models end a turn with other tokens than eos; generation_config.json lists them all.
    stated = _read(path / "generation_config.json", _GenerationConfig).eos_token_id
    eos_ids += [stated] if isinstance(stated, int) else stated or []
    return SpecialTokens(
        bos_token=_content(config.bos_token or older.bos_token),
        eos_token=eos_token,
        eos_token_ids=tuple(dict.fromkeys(eos_ids)),
        chat_templates=_chat_templates(path, config.chat_template),
    )


def _chat_templates(path: Path, configured: str | list[_NamedTemplate] | None) -> dict[str, str]:
    """Templates by name: those of tokenizer_config.json, then the separate files that replaced them."""
    templates: dict[str, str] = {}
    if isinstance(configured, str):
        templates["default"] = configured
    elif configured is not None:
        templates |= {entry.name: entry.template for entry in configured}
    for file in sorted((path / "additional_chat_templates").glob("*.jinja")):
        templates[file.stem] = file.read_text(encoding="utf-8")
    main = path / "chat_template.jinja"
    if main.is_file():
        templates["default"] = main.read_text(encoding="utf-8")
    return templates


def _content(token: str | _Token | None) -> str | None:
    return token.content if isinstance(token, _Token) else token


_File = TypeVar("_File", _TokenizerConfig, _GenerationConfig)


def _read(path: Path, kind: type[_File]) -> _File:
    """The file as `kind`, or an empty one if there is no such file."""
    if not path.is_file():
        return kind()
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.MsgspecError as error:
        raise ValueError(f"cannot read {path}: {error}") from error
