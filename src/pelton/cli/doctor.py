"""`pelton doctor`: what hardware and kernels there are, what is missing, and what a model would get."""

import argparse
import dataclasses
import platform
import sys
from dataclasses import dataclass

import msgspec

import pelton
from pelton.cli.flags import Parser, add_engine_arguments, engine_config
from pelton.cli.hardware import Machine, installed_version, probe_kernels, probe_machine
from pelton.cli.logs import configure_logging
from pelton.cli.sizes import show_bytes
from pelton.config import EngineConfig, chosen, resolve
from pelton.weights.hub import locate
from pelton.weights.model_files import ModelFiles

DISTRIBUTIONS = ("torch", "numpy", "tokenizers", "safetensors", "huggingface_hub", "starlette", "uvicorn", "uvloop")

# What is lost without an instruction set that the kernels know.
_LOST = {
    "avx2": "kernels run their portable versions, many times slower",
    "avx512": "vectors are half as long and 8-bit products take several instructions",
    "avx512_bf16": "bfloat16 products have no fast path; float32 is the default and takes twice the memory traffic",
    "amx_bf16": "prefill does not use matrix tiles; long prompts take several times longer",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDiagnosis:
    """What `resolve` chooses for a model here. `kv_tokens` is how many tokens fit into the KV cache at once."""

    path: str
    architecture: str
    num_parameters: int
    dtype: str
    kv_cache_dtype: str
    max_model_len: int
    num_threads: int
    max_num_batched_tokens: int
    kv_cache_memory: int  # bytes
    kv_bytes_per_token: int
    kv_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    machine: Machine
    kernels: dict[str, bool] | None
    versions: dict[str, str | None]
    embedded_model: str | None
    model: ModelDiagnosis | None
    advice: tuple[str, ...]


def add_arguments(parser: Parser) -> None:
    add_engine_arguments(parser, groups=("model", "engine", "logging"))
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(args: argparse.Namespace) -> int:
    config = engine_config(args, log_level="warning")
    configure_logging(config.log_level)
    diagnosis = diagnose(config)
    if args.json:
        encoded = msgspec.json.encode(dataclasses.asdict(diagnosis))
        sys.stdout.write(msgspec.json.format(encoded, indent=2).decode() + "\n")
    else:
        sys.stdout.write(show(diagnosis))
    return 0


def diagnose(config: EngineConfig) -> Diagnosis:
    """Examine this machine and, when it can be found, the model of `config`.

    Raises:
        ValueError: a model was named and cannot be used.
    """
    advice: list[str] = []
    machine = probe_machine()
    kernels = _examine_kernels(advice)
    embedded = _find_embedded_model(advice)
    _examine_machine(machine, advice)
    wanted = config.model is not None or embedded is not None
    return Diagnosis(
        machine=machine,
        kernels=kernels,
        versions={"python": platform.python_version(), "pelton": pelton.__version__}
        | {name: installed_version(name) for name in DISTRIBUTIONS},
        embedded_model=embedded,
        model=_examine_model(config) if wanted else None,
        advice=tuple(advice),
    )


def _examine_kernels(advice: list[str]) -> dict[str, bool] | None:
    try:
        kernels = probe_kernels()
    except OSError as error:
        advice.append(str(error))
        return None
    if kernels is None:
        advice.append(
            "the C++ kernels are not built: reference operations run instead, many times slower; "
            "install g++ 12 or newer and reinstall pelton"
        )
        return None
    advice.extend(f"no {name}: {_LOST[name]}" for name, present in kernels.items() if not present and name in _LOST)
    return kernels


def _find_embedded_model(advice: list[str]) -> str | None:
    try:
        return str(locate(None))
    except ValueError as error:
        advice.append(str(error))
        return None


def _examine_machine(machine: Machine, advice: list[str]) -> None:
    if machine.cpu_quota is not None and machine.cpu_quota < machine.num_cores:
        advice.append(
            f"a control group grants {machine.cpu_quota:g} of {machine.num_cores} cores: threads beyond it stall "
            f"each other; set --num-threads {max(int(machine.cpu_quota), 1)}"
        )
    if machine.transparent_huge_pages == "never":
        advice.append("transparent huge pages are off: large weights cost more address translation")


def _examine_model(config: EngineConfig) -> ModelDiagnosis:
    files = ModelFiles(locate(config.model, revision=config.revision, download_dir=config.download_dir))
    info = files.info()
    resolved = resolve(config, info)
    bytes_per_token = info.kv_bytes_per_token(resolved.kv_cache_dtype)
    memory = chosen(resolved.kv_cache_memory)
    return ModelDiagnosis(
        path=str(files.path),
        architecture=info.architecture,
        num_parameters=info.num_parameters,
        dtype=resolved.dtype,
        kv_cache_dtype=resolved.kv_cache_dtype,
        max_model_len=chosen(resolved.max_model_len),
        num_threads=chosen(resolved.num_threads),
        max_num_batched_tokens=chosen(resolved.max_num_batched_tokens),
        kv_cache_memory=memory,
        kv_bytes_per_token=bytes_per_token,
        kv_tokens=memory // bytes_per_token,
    )


def show(diagnosis: Diagnosis) -> str:
    """The diagnosis for people: a block of lines each for machine, kernels, versions, model, advice."""
    machine = diagnosis.machine
    quota = "" if machine.cpu_quota is None else f", {machine.cpu_quota:g} granted"
    lines = [
        f"cpu        {machine.cpu}, {machine.num_cores} cores{quota}",
        f"           {' '.join(machine.cpu_flags) or 'none of the instruction sets that matter'}",
        f"memory     {show_bytes(machine.available_memory)} available of {show_bytes(machine.total_memory)}; "
        f"transparent huge pages: {machine.transparent_huge_pages}; {machine.num_huge_pages} reserved",
        f"kernels    {_show_kernels(diagnosis.kernels)}",
        "versions   " + ", ".join(f"{name} {version or 'missing'}" for name, version in diagnosis.versions.items()),
        f"embedded   {diagnosis.embedded_model or 'not installed'}",
    ]
    if diagnosis.model is not None:
        lines += _show_model(diagnosis.model)
    lines += [f"advice     {line}" for line in diagnosis.advice] or ["advice     none: everything is in place"]
    return "\n".join(lines) + "\n"


def _show_kernels(kernels: dict[str, bool] | None) -> str:
    if kernels is None:
        return "reference operations (no compiled kernels)"
    return "C++ with " + (" ".join(name for name, present in kernels.items() if present) or "portable code only")


def _show_model(model: ModelDiagnosis) -> list[str]:
    return [
        f"model      {model.path}",
        f"           {model.architecture}, {model.num_parameters / 1e6:.0f} M weights, computed in {model.dtype}",
        f"           context {model.max_model_len}, {model.num_threads} threads, "
        f"{model.max_num_batched_tokens} tokens a step",
        f"KV cache   {show_bytes(model.kv_cache_memory)} in {model.kv_cache_dtype} at {model.kv_bytes_per_token} bytes "
        f"a token: {model.kv_tokens} tokens, {model.kv_tokens / model.max_model_len:.1f} full contexts",
    ]
