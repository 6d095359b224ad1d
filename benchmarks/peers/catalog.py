"""What is compared: the models, and the engines with the command that starts each of them."""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

GIB = 2**30
NUM_SLOTS = 64  # requests at once, where an engine wants to know beforehand
MAX_MODEL_LEN = 2048
MODEL_NAME = "m"  # in the API


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A Llama with tied embeddings, in numbers."""

    name: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def layer_weights(self) -> int:
        """Weights of all linear layers but the output head: each serves once per token of prompt and answer."""
        attention = 2 * self.hidden_size * self.head_dim * (self.num_heads + self.num_kv_heads)
        return self.num_layers * (attention + 3 * self.hidden_size * self.intermediate_size)

    @property
    def head_weights(self) -> int:
        return self.vocab_size * self.hidden_size

    @property
    def kv_bytes_per_token(self) -> int:
        """In bf16."""
        return 2 * 2 * self.num_layers * self.num_kv_heads * self.head_dim

    def operations(self, num_tokens: int, num_outputs: int) -> float:
        """Of the weights alone (attention not counted), two a multiply-add; the head works for sampled tokens only."""
        return 2.0 * (self.layer_weights * num_tokens + self.head_weights * num_outputs)

    def step_bytes(self, bits: float, head_bits: float, context: int) -> float:
        """What one step of one request must read: all weights, and the bf16 KV cache of `context` tokens."""
        weights = (self.layer_weights * bits + self.head_weights * head_bits) / 8
        return weights + self.kv_bytes_per_token * context


SMOLLM2 = ModelShape(
    name="smollm2-135m",
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
)
LLAMA_1B = ModelShape(
    name="llama-1b",
    vocab_size=49152,
    hidden_size=2048,
    intermediate_size=8192,
    num_layers=16,
    num_heads=32,
    num_kv_heads=8,
    head_dim=64,
)
MODELS = {shape.name: shape for shape in (SMOLLM2, LLAMA_1B)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One row of the tables. `{port}` in the command stands for the port to listen on.

    `bits` and `head_bits` are those of a weight as it is multiplied, scales included. An engine without HTTP
    (`speaks_http` false) answers on its standard output, as openvino_loop.py. `settings` go into each request.
    """

    name: str
    command: tuple[str, ...]
    bits: float
    head_bits: float
    needs: tuple[Path, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    settings: Mapping[str, object] = field(default_factory=dict[str, object])
    speaks_http: bool = True
    is_peer: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Where the engines and models are, and how much KV cache each may have."""

    cache: Path
    kv_gib: int
    pelton: Path
    num_threads: int = os.cpu_count() or 1

    def model(self, shape: ModelShape, form: str) -> Path:
        return self.cache / "models" / shape.name / form


def peers(shape: ModelShape, setup: Setup) -> list[Engine]:
    """All peers that can run the model."""
    return [
        _vllm(shape, setup, "bf16", 16, 16),
        _vllm(shape, setup, "w8a8", 8, 16),
        _llama_server(shape, setup, "q4_0", 4.5),
        _llama_server(shape, setup, "q8_0", 8.5),
        _llama_server(shape, setup, "bf16", 16),
        _openvino(shape, setup, "q8_0", 8.5),
        _openvino(shape, setup, "q4_0", 4.5),
    ]


def _vllm(shape: ModelShape, setup: Setup, form: str, bits: float, head_bits: float) -> Engine:
    binary, model = setup.cache / "vllm" / "bin" / "vllm", setup.model(shape, form)
    flags = ["--dtype", "bfloat16", "--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", str(NUM_SLOTS)]
    environment = {
        "VLLM_CACHE_ROOT": str(setup.cache / "vllm-cache"),
        "VLLM_CPU_KVCACHE_SPACE": str(setup.kv_gib),
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{setup.num_threads - 1}",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    openmp = setup.cache / "vllm" / "lib" / "libiomp5.so"
    if openmp.exists():  # as vLLM's guide for CPUs advises
        environment["LD_PRELOAD"] = str(openmp)
    return Engine(
        name=f"vllm-{form}",
        command=(str(binary), "serve", str(model), "--served-model-name", MODEL_NAME, "--port", "{port}", *flags),
        bits=bits,
        head_bits=head_bits,
        needs=(binary, model),
        environment=environment,
    )


def _llama_server(shape: ModelShape, setup: Setup, form: str, bits: float) -> Engine:
    binary, model = setup.cache / "llama.cpp" / "bin" / "llama-server", setup.model(shape, f"{form}.gguf")
    threads = str(setup.num_threads)
    context = setup.kv_gib * GIB // shape.kv_bytes_per_token // NUM_SLOTS * NUM_SLOTS
    flags = ["-t", threads, "-tb", threads, "-c", str(context), "-np", str(NUM_SLOTS), "-cb", "-fa", "on"]
    return Engine(
        name=f"llama-{form}",
        command=(str(binary), "-m", str(model), "--port", "{port}", *flags),
        bits=bits,
        head_bits=min(16, max(bits, 8.5)),
        needs=(binary, model),
        settings={"cache_prompt": True},
    )


def _openvino(shape: ModelShape, setup: Setup, form: str, bits: float) -> Engine:
    binary, model = setup.cache / "openvino" / "bin" / "python", setup.model(shape, f"{form}.gguf")
    script = Path(__file__).with_name("openvino_loop.py")
    return Engine(
        name=f"openvino-{form}",
        command=(str(binary), str(script), str(model), "--kv-gib", str(setup.kv_gib), "--max-num-seqs", str(NUM_SLOTS)),
        bits=bits,
        head_bits=8.5,
        needs=(binary, model),
        speaks_http=False,
    )


def pelton(shape: ModelShape, setup: Setup, name: str, flags: Sequence[str]) -> Engine:
    """Pelton with further flags. A flag `{q8_0}`, `{bf16}`, ... is that form of the model.

    Without one it is the embedded GGUF for SmolLM2 and the bf16 checkpoint for the other model.
    """
    forms = {"{bf16}": "bf16", "{w8a8}": "w8a8", "{bf16.gguf}": "bf16.gguf"}
    forms |= {"{q8_0}": "q8_0.gguf", "{q4_0}": "q4_0.gguf"}
    chosen = [flag for flag in flags if flag in forms]
    model = [] if shape is SMOLLM2 or chosen else [str(setup.model(shape, "bf16"))]
    arguments = [str(setup.model(shape, forms[flag])) if flag in forms else flag for flag in flags]
    bits, head_bits = _pelton_bits(flags)
    return Engine(
        name=f"pelton-{name}",
        command=(
            *(str(setup.pelton), "serve", *model, *arguments, "--port", "{port}", "--served-model-name", MODEL_NAME),
            *("--kv-cache-memory", str(setup.kv_gib * GIB), "--log-level", "warning"),
        ),
        bits=bits,
        head_bits=head_bits,
        needs=(setup.pelton, *(setup.model(shape, forms[flag]) for flag in chosen), *map(Path, model)),
        is_peer=False,
    )


def _pelton_bits(flags: Sequence[str]) -> tuple[float, float]:
    """Bits of a weight and of one of the output head, from the flags."""
    if "native" in flags:
        files = {"{q8_0}": 8.5, "{q4_0}": 4.5}
        return next((files[flag] for flag in flags if flag in files), 5.0), 8.5
    if "int8" in flags or "{w8a8}" in flags:
        return 8.0, 8.0
    return (4.5, 8.0) if "int4" in flags else (16.0, 16.0)


def parse_pelton_config(text: str) -> tuple[str, list[str]]:
    """`int8=--quantize int8` as a name and flags.

    Raises:
        ValueError: there is no name.
    """
    name, separator, flags = text.partition("=")
    if not separator or not name or name.startswith("-"):
        raise ValueError(f"--pelton-config {text!r} must look like 'int8=--quantize int8'")
    return name, shlex.split(flags)


def select(engines: Sequence[Engine], names: Sequence[str]) -> list[Engine]:
    """The engines of these names, or of names that begin so (`vllm`), in the order of `engines`.

    Raises:
        ValueError: a name fits none.
    """

    def fits(engine: Engine, name: str) -> bool:
        return engine.name == name or engine.name.startswith(f"{name}-")

    for name in names:
        if not any(fits(engine, name) for engine in engines):
            raise ValueError(f"no engine is called {name!r}; there are {', '.join(each.name for each in engines)}")
    return [engine for engine in engines if any(fits(engine, name) for name in names)]
