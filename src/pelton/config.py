"""EngineConfig: everything a user can set. Flags, help text, docs and the configuration file come from its fields."""

import dataclasses
import difflib
import logging
import math
import os
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pelton.model_config import ModelInfo

logger = logging.getLogger(__name__)

Value = TypeVar("Value")

_DEFAULT_KV_CACHE_MEMORY = 4 * 2**30
MIN_PAGE_SIZE = 16  # the CPU kernel takes 16 keys at a time
_BOOLEANS = {"true": True, "false": False}
_TYPE_NAMES = {bool: "true or false", int: "an integer", float: "a number", str: "a string", tuple: "a list of strings"}
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def setting(
    default: Any,  # noqa: ANN401 (any JSON value)
    help: str,
    *,
    group: str,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] | None = None,
    aliases: tuple[str, ...] = (),
    size: bool = False,
    positional: bool = False,
) -> Any:  # noqa: ANN401 (dataclasses.field is untyped in the same way)
    """A field of EngineConfig with what its flag, help text and range check need.

    `size` fields accept "4G", "512M" or bytes. `aliases` are further flag names, without dashes.
    """
    metadata = {
        "help": help,
        "group": group,
        "minimum": minimum,
        "maximum": maximum,
        "choices": choices,
        "aliases": aliases,
        "size": size,
        "positional": positional,
    }
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of engine and server. None means "auto": `resolve()` chooses a value and logs it.

    Raises:
        ValueError: a value is out of range or contradicts another; the message names the setting and the fix.
    """

    model: str | None = setting(
        None,
        "GGUF file, safetensors directory or Hugging Face id; the embedded SmolLM2-135M-Instruct by default",
        group="model",
        positional=True,
    )
    revision: str | None = setting(None, "branch, tag or commit of a Hugging Face id", group="model")
    download_dir: str | None = setting(None, "folder for downloads; the Hugging Face cache by default", group="model")
    served_model_name: str | None = setting(None, "name in the API; derived from the model by default", group="model")
    chat_template: str | None = setting(
        None, "file with a Jinja chat template that replaces the model's", group="model"
    )
    dtype: str = setting(
        "auto",
        "arithmetic and dense weights: bfloat16 where the CPU multiplies in it, else float32",
        group="model",
        choices=("auto", "bfloat16", "float32"),
    )
    weight_format: str = setting(
        "dense",
        "quantized GGUF weights: dense expands them to dtype; native multiplies by them as stored, with int8 "
        "activations: about half the time a token for one client, a third of the memory for 4 bits, and less exact",
        group="model",
        choices=("dense", "native"),
    )
    quantize: str = setting(
        "none",
        "round weights when they are loaded, whatever the checkpoint stores, and activations to int8: int8 has half "
        "the memory of bfloat16 and twice its speed, int4 (embedding and head in int8) less memory and the fastest "
        "single stream",
        group="model",
        choices=("none", "int8", "int4"),
    )
    max_model_len: int | None = setting(
        None,
        "longest prompt plus output, in tokens; by default the trained context, or what the KV cache holds",
        group="model",
        minimum=1,
    )
    generation_config: str = setting(
        "auto",
        "sampling of requests that leave it open: auto takes what the model's generation_config.json or GGUF metadata "
        "recommends, none (or vllm) the API's own defaults",
        group="model",
        choices=("auto", "none", "vllm"),
    )
    override_generation_config: str | None = setting(
        None, "JSON object of generation_config.json's sampling fields, which win over the model's", group="model"
    )
    seed: int = setting(0, "base of the seeds drawn for requests without one", group="model", minimum=0)

    device: str = setting("auto", "where the model runs", group="engine", choices=("auto", "cpu"))
    num_threads: int | None = setting(
        None, "CPU threads of the engine; all cores by default", group="engine", minimum=1
    )
    max_num_seqs: int = setting(256, "requests that run at once", group="engine", minimum=1, maximum=65536)
    max_num_batched_tokens: int | None = setting(
        None, "token budget of one step; a larger one favours throughput over latency", group="engine", minimum=1
    )
    page_size: int = setting(
        16, "tokens of one KV page, a multiple of 16", group="engine", minimum=MIN_PAGE_SIZE, aliases=("block-size",)
    )
    kv_cache_memory: int | None = setting(
        None,
        "KV cache size in bytes (or 4G, 512M); by default what is needed, up to 4G and half of free memory",
        group="engine",
        minimum=1,
        size=True,
        aliases=("kv-cache-memory-bytes",),
    )
    kv_cache_dtype: str = setting(
        "auto",
        "type of cached keys and values; the model's by default. int8 and fp8 (e4m3) take about half of the memory of "
        "bfloat16, with a scale to each token and head; int8 is the more exact one",
        group="engine",
        choices=("auto", "bfloat16", "float32", "int8", "fp8"),
    )
    pooling_type: str = setting(
        "last",
        "which hidden states are a text's embedding: of its last token, or the mean over all",
        group="engine",
        choices=("last", "mean"),
    )
    enable_prefix_caching: bool = setting(True, "reuse the KV pages of shared prompt prefixes", group="engine")

    host: str = setting("127.0.0.1", "address to listen on", group="server")
    port: int = setting(8000, "port to listen on", group="server", minimum=1, maximum=65535)
    uds: str | None = setting(None, "Unix socket to listen on instead of host and port", group="server")
    api_key: tuple[str, ...] = setting((), "key that clients must send; may be given more than once", group="server")
    max_queue: int = setting(
        4096, "waiting requests beyond which new ones get a 429", group="server", minimum=1, aliases=("max-waiting",)
    )
    max_concurrent_requests: int | None = setting(
        None, "requests of one API key at once, beyond which new ones get a 429", group="server", minimum=1
    )
    max_requests_per_minute: int | None = setting(
        None, "requests of one API key in a minute, beyond which new ones get a 429", group="server", minimum=1
    )
    max_tokens_per_minute: int | None = setting(
        None,
        "prompt and output tokens of one API key in a minute, after which its new requests get a 429",
        group="server",
        minimum=1,
    )
    request_timeout: float | None = setting(
        None, "seconds after which a request ends with a 408; clients can ask for less", group="server", minimum=0.001
    )
    allowed_origins: tuple[str, ...] = setting(
        (), "web origin whose pages may use the API (CORS), * for any; may be given more than once", group="server"
    )
    shutdown_timeout: float = setting(
        30.0, "seconds that running requests get after SIGTERM; 0 aborts them", group="server", minimum=0
    )
    stuck_after: float = setting(
        60.0, "seconds without a step, with work at hand, after which /health says 503", group="server", minimum=1
    )
    tool_call_parser: str = setting(
        "auto",
        "how the model writes tool calls; by default what its chat template shows, else hermes",
        group="server",
        choices=("auto", "hermes", "llama3_json", "mistral", "pythonic"),
    )
    reasoning_parser: str = setting(
        "auto",
        "whether turns may begin with <think> reasoning, which is split off: the two models' names mean the same; by "
        "default when the chat template mentions it",
        group="server",
        choices=("auto", "deepseek_r1", "qwen3", "none"),
    )
    vllm_metrics: bool = setting(True, "also serve the metrics under vLLM's names", group="server")

    log_level: str = setting("info", "how much to log", group="logging", choices=("debug", "info", "warning", "error"))

    def __post_init__(self) -> None:
        for spec in dataclasses.fields(self):
            check_setting(spec, getattr(self, spec.name))
        if self.page_size % MIN_PAGE_SIZE:
            raise ValueError(f"page_size must be a multiple of {MIN_PAGE_SIZE}, got {self.page_size}")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "EngineConfig":
        """Build from parsed JSON or TOML. Dashes and underscores are the same; unknown keys raise ValueError."""
        known = {spec.name: spec for spec in dataclasses.fields(cls)}
        settings: dict[str, Any] = {}
        for key, value in values.items():
            name = key.replace("-", "_")
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {close[0]}?" if close else f"the settings are: {', '.join(sorted(known))}"
                raise ValueError(f"unknown setting {key!r}; {hint}")
            settings[name] = parse_setting(known[name], value)
        return cls(**settings)


def resolve(config: EngineConfig, info: ModelInfo) -> EngineConfig:
    """Replace every "auto" by a value, log each choice, and refuse what cannot work.

    Raises:
        ValueError: the KV cache cannot hold one request of the max_model_len asked for; names what would fit. Or two
            settings contradict each other.
    """
    if config.quantize != "none" and config.weight_format == "native":
        raise ValueError(
            f"weight_format native keeps weights as they are stored, quantize {config.quantize} does not; "
            "set only one of the two"
        )
    dtype = config.dtype if config.dtype != "auto" else ("bfloat16" if cpu_multiplies_bfloat16() else "float32")
    kv_cache_dtype = config.kv_cache_dtype if config.kv_cache_dtype != "auto" else dtype
    max_model_len, num_pages = _size_cache(config, info, info.kv_bytes_per_token(kv_cache_dtype))
    resolved = dataclasses.replace(
        config,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        max_model_len=max_model_len,
        device="cpu" if config.device == "auto" else config.device,
        num_threads=config.num_threads or len(os.sched_getaffinity(0)),
        max_num_batched_tokens=config.max_num_batched_tokens or 512,
        kv_cache_memory=num_pages * config.page_size * info.kv_bytes_per_token(kv_cache_dtype),
    )
    for spec in dataclasses.fields(config):
        if getattr(config, spec.name) != getattr(resolved, spec.name):
            logger.info("%s: %s (chosen)", spec.name, getattr(resolved, spec.name))
    return resolved


def _size_cache(config: EngineConfig, info: ModelInfo, token_bytes: int) -> tuple[int, int]:
    """(max_model_len, number of KV pages), with `token_bytes` of keys and values a token."""
    limit = config.max_model_len or info.max_position_embeddings
    if limit > info.max_position_embeddings:
        raise ValueError(
            f"max_model_len {limit} is above the model's trained context of {info.max_position_embeddings}; "
            f"set --max-model-len {info.max_position_embeddings} or less"
        )
    page_bytes = token_bytes * config.page_size
    request_pages = math.ceil(limit / config.page_size)
    memory = config.kv_cache_memory
    if memory is None:
        wanted = min(config.max_num_seqs * request_pages * page_bytes, _DEFAULT_KV_CACHE_MEMORY)
        memory = min(max(wanted, request_pages * page_bytes), available_memory() // 2)
    num_pages = memory // page_bytes
    if num_pages >= request_pages:
        return limit, num_pages
    fits = num_pages * config.page_size
    if config.max_model_len is None and fits > 0:
        return fits, num_pages
    raise ValueError(
        f"kv_cache_memory of {memory} bytes holds {fits} tokens at {token_bytes} bytes a token, "
        f"fewer than max_model_len {limit}; set --max-model-len {fits} or less, "
        f"or --kv-cache-memory {request_pages * page_bytes} or more"
    )


def chosen(value: Value | None) -> Value:
    """The value of a setting of a resolved configuration."""
    assert value is not None, "the configuration is not resolved"
    return value


def parse_setting(spec: "dataclasses.Field[Any]", value: object) -> Any:  # noqa: ANN401 (any setting)
    """Turn a flag's string or a configuration file's value into the field's type; ValueError names the setting."""
    if value is None:
        return None
    target = field_type(spec)
    if spec.metadata["size"] and isinstance(value, str):
        return parse_size(spec.name, value)
    if target is tuple and isinstance(value, str):
        return (value,)
    try:
        return _construct(target, value) if isinstance(value, str) else _convert(target, value)
    except (ValueError, TypeError, KeyError):
        raise ValueError(f"{spec.name} must be {_TYPE_NAMES[target]}, got {value!r}") from None


def _construct(target: Callable[[str], object], text: str) -> object:
    return _BOOLEANS[text.lower()] if target is bool else target(text)


def _convert(target: type, value: object) -> object:
    """A parsed value as a `target`. Nothing is bent: True is no integer, 1.5 neither, a list no string."""
    if target is tuple and isinstance(value, (list, tuple)):
        return tuple(_convert(str, item) for item in typing.cast("Sequence[object]", value))
    if target is float and type(value) is int:
        return float(value)
    if type(value) is not target:
        raise TypeError
    return value


def parse_size(name: str, text: str) -> int:
    """Bytes from "4G", "512MiB" or "1048576"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if match is None:
        raise ValueError(f"{name} must be a size such as 4G, 512M or a number of bytes, got {text!r}")
    return int(float(match[1]) * _UNITS[match[2]])


def field_type(spec: "dataclasses.Field[Any]") -> type:
    """The scalar type of a field: `int` for `int | None`, `tuple` for `tuple[str, ...]`."""
    hint = typing.get_type_hints(EngineConfig)[spec.name]
    if isinstance(hint, types.UnionType):
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    return typing.get_origin(hint) or hint


def check_setting(spec: "dataclasses.Field[Any]", value: Any) -> None:  # noqa: ANN401 (any field's value)
    """Range and choice check of one field; ValueError names the setting."""
    if value is None:
        return
    choices, low, high = spec.metadata["choices"], spec.metadata["minimum"], spec.metadata["maximum"]
    if choices is not None and value not in choices:
        raise ValueError(f"{spec.name} must be one of {', '.join(choices)}, got {value!r}")
    if low is not None and not value >= low:
        raise ValueError(f"{spec.name} must be at least {low}, got {value}")
    if high is not None and not value <= high:
        raise ValueError(f"{spec.name} must be at most {high}, got {value}")


def cpu_multiplies_bfloat16() -> bool:
    """Whether /proc/cpuinfo reports AVX512_BF16 or AMX_BF16."""
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def available_memory() -> int:
    """Bytes of memory free for use now, within the cgroup's limit where there is one."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):  # no cgroup v2, or "max"
        return available
    return min(available, max(limit - used, 0))
