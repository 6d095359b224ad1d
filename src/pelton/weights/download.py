"""Models from the Hugging Face Hub, or the server that HF_ENDPOINT names, into the Hub's local cache."""

import fnmatch
from pathlib import Path

from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,  # pyright: ignore[reportPrivateImportUsage]  # of whichever HTTP client this version uses
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

# Not "*.safetensors": some repositories hold the same weights twice, under another naming.
MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
_PICKLES = ("*.bin", "*.pt", "*.pth")


def download_model(
    repository: str, variant: str | None, *, revision: str | None, cache_dir: str | None, progress: bool
) -> Path:
    """Download what is not in the cache yet. A broken connection is resumed; after a failure whole files are kept.

    Args:
        repository: "org/name".
        variant: name of a GGUF file in it, or of a quantization such as "Q4_0"; None for safetensors, or for the only
            GGUF file.

    Returns:
        A directory with config.json and safetensors, or a GGUF file.

    Raises:
        ValueError: one line that names the model, what failed and how to mend it.
    """
    hidden = are_progress_bars_disabled()
    if not progress:
        disable_progress_bars()
    try:
        return _Repository(repository, revision, cache_dir).fetch(variant)
    except HFValidationError as error:
        raise ValueError(f"{repository}: {_first_line(error)}") from None
    except (HTTPError, OSError) as error:
        raise ValueError(f"{repository}: {_reason(error, repository, revision)}") from None
    finally:
        if not hidden:
            enable_progress_bars()


class _Repository:
    """One revision of a model repository, and its copy in the cache."""

    def __init__(self, repository: str, revision: str | None, cache_dir: str | None) -> None:
        self._repository = repository
        self._revision = revision
        self._cache_dir = cache_dir

    def fetch(self, variant: str | None) -> Path:
        if variant is not None:
            return self._fetch_gguf(variant)
        folder = self._snapshot(MODEL_FILES)
        if any(folder.glob("model*.safetensors")):
            return folder
        return self._fetch_only_gguf()

    def _snapshot(self, patterns: tuple[str, ...]) -> Path:
        folder = snapshot_download(
            self._repository, revision=self._revision, cache_dir=self._cache_dir, allow_patterns=list(patterns)
        )
        return Path(folder)

    def _fetch_gguf(self, variant: str) -> Path:
        if variant.endswith(".gguf"):
            patterns = (variant,)
        else:
            patterns = tuple(dict.fromkeys(f"*{name}.gguf" for name in (variant, variant.upper(), variant.lower())))
        folder = self._snapshot(patterns)
        names = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*.gguf"))]
        matching = [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]
        if len(matching) == 1:
            return folder / matching[0]
        if matching:
            raise ValueError(f"{self._repository}: {variant!r} fits {', '.join(matching)}; name one of the files")
        raise ValueError(f"{self._repository}: no GGUF file fits {variant!r}; {self._offer()}")

    def _fetch_only_gguf(self) -> Path:
        """For a repository without safetensors."""
        names = self._names()
        gguf_names = [name for name in names if name.endswith(".gguf")]
        if len(gguf_names) == 1:
            return self._fetch_gguf(gguf_names[0])
        if gguf_names:
            raise ValueError(f"{self._repository}: holds several GGUF files, pick one; {self._offer()}")
        if any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in _PICKLES):
            raise ValueError(
                f"{self._repository}: holds pickles only (.bin, .pt), which can run code when loaded and are refused; "
                "look for a safetensors or GGUF version"
            )
        raise ValueError(f"{self._repository}: holds neither safetensors nor GGUF files")

    def _offer(self) -> str:
        names = [name for name in self._names() if name.endswith(".gguf")]
        shown = ", ".join(f"{self._repository}:{name}" for name in names[:8])
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        return f"there are: {shown}{more}" if names else "it holds no GGUF files"

    def _names(self) -> list[str]:
        return sorted(HfApi().list_repo_files(self._repository, revision=self._revision))


def _reason(error: Exception, repository: str, revision: str | None) -> str:
    """One line for people: what failed and what to do about it."""
    endpoint = constants.ENDPOINT
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    if isinstance(error, GatedRepoError):
        return f"gated; accept its terms at {endpoint}/{repository}, then log in with `hf auth login` or set HF_TOKEN"
    if isinstance(error, RepositoryNotFoundError):
        return f"no such local path, and no such model on {endpoint}, or a private one; check the name, or set HF_TOKEN"
    if status in (401, 403):
        return f"{endpoint} refuses access (status {status}); log in with `hf auth login` or set HF_TOKEN"
    if isinstance(error, RevisionNotFoundError):
        return f"has no revision {revision!r}; check --revision"
    if status is not None:
        return f"{endpoint} answered with status {status}; try again later"
    if constants.HF_HUB_OFFLINE:
        return "not in the cache, and HF_HUB_OFFLINE forbids to download it; unset it, or give a local path"
    if isinstance(error, LocalEntryNotFoundError):
        fault = f"{endpoint} cannot be reached or has a fault"
        return f"not in the cache, and {fault}; check the network or HF_ENDPOINT, or give a path"
    return f"download from {endpoint} failed ({_first_line(error)}); run again to go on"


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
