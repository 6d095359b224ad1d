"""An echoed prompt and its output have one entry a token in each list, and the model's own log probabilities.

Evaluation harnesses read them so. Reported: lists of other lengths than the tokens, a lost leading newline, offsets
that do not point at their tokens, and other values where the prompt was cached or computed in chunks (vllm#5334,
vllm-metal#680, lm-evaluation-harness#1411).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from pelton.tokenizer import Tokenizer
from pelton.weights.hub import locate
from pelton.weights.model_files import ModelFiles

from canary import Canary, running_canary

pytestmark = pytest.mark.e2e

PROMPT = "\n1. Carol has 20"
LONG = "\n1. Carol has 20 apples, and the sea came over the road twice a day. " * 6
LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


@pytest.fixture(scope="module")
def files() -> ModelFiles:
    return ModelFiles(locate(None))


@pytest.fixture(scope="module")
def tokenizer(files: ModelFiles) -> Tokenizer:
    return files.tokenizer()


@pytest.fixture(scope="module")
def reference(files: ModelFiles) -> transformers.PreTrainedModel:
    path = Path(files.path)
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    return model.eval()


@pytest.fixture(scope="module", params=[7, 512], ids=["in chunks", "whole"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Canary]:
    flags = ("--dtype", "float32", "--max-num-batched-tokens", str(request.param))
    with running_canary(tmp_path_factory.mktemp("server"), *flags) as canary:
        yield canary


def echoed(server: Canary, prompt: str) -> dict[str, Any]:
    body = {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 5, "temperature": 0}
    response = server.client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


@pytest.mark.parametrize("prompt", [PROMPT, LONG], ids=["short", "long"])
def test_log_02_lists_are_aligned_and_match_the_model(
    server: Canary, tokenizer: Tokenizer, reference: transformers.PreTrainedModel, prompt: str
):
    prompt_ids = tokenizer.encode(prompt)
    server.client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1})  # now the prefix cache holds it
    choice = echoed(server, prompt)
    text, shape = choice["text"], choice["logprobs"]
    assert [len(shape[name]) for name in LISTS] == [len(prompt_ids) + 5] * 4
    assert "".join(shape["tokens"]) == text
    assert text.startswith(prompt)
    assert all(text.startswith(token, at) for token, at in zip(shape["tokens"], shape["text_offset"], strict=True))
    assert (shape["token_logprobs"][0], shape["top_logprobs"][0]) == (None, None)
    token_ids = tokenizer.encode(text)
    assert token_ids[: len(prompt_ids)] == prompt_ids
    with torch.inference_mode():
        logprobs = reference(torch.tensor([token_ids])).logits[0].log_softmax(-1)
    for position, value in enumerate(shape["token_logprobs"][1:], start=1):
        row = logprobs[position - 1]
        assert value == pytest.approx(float(row[token_ids[position]]), abs=1e-2)
        assert max(shape["top_logprobs"][position].values()) == pytest.approx(float(row.max()), abs=1e-2)
    server.check()


def test_log_02_a_prompt_alone_is_scored_with_the_same_numbers(server: Canary, tokenizer: Tokenizer):
    whole = echoed(server, LONG)["logprobs"]
    body = {"prompt": LONG, "echo": True, "logprobs": 1, "max_tokens": 0}
    answer = server.client.post("/v1/completions", json=body).json()
    alone = answer["choices"][0]
    assert alone["text"] == LONG
    assert answer["usage"]["completion_tokens"] == 0
    num_prompt = len(tokenizer.encode(LONG))
    assert {name: alone["logprobs"][name] for name in LISTS} == {name: whole[name][:num_prompt] for name in LISTS}
