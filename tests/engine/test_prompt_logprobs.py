"""Log-probabilities of prompts: transformers' values, whatever the chunks, and of every position once."""

from pathlib import Path

import pytest
import torch
import transformers

from pelton.engine.llm import LLM, RequestOutput
from pelton.errors import RequestError
from pelton.types import SamplingParams, TokenLogprobs
from pelton.weights.hub import locate
from pelton.weights.model_files import ModelFiles

PROMPT = "\n1. Carol has 20 apples. She gives some of them to Paul, who has none. How many are left?" * 5


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(dtype="float32", max_num_batched_tokens=512)


@pytest.fixture(scope="module")
def whole(llm: LLM) -> RequestOutput:
    return score(llm, PROMPT)


def score(llm: LLM, *prompts: str | list[int], count: int = 3, **params: object) -> RequestOutput:
    settings = SamplingParams(temperature=0.0, prompt_logprobs=count, **{"max_tokens": 2, **params})  # type: ignore[arg-type]
    return llm.generate(list(prompts), settings, use_tqdm=False)[0]


def known(result: RequestOutput) -> list[TokenLogprobs]:
    assert result.prompt_logprobs is not None
    first, *rest = result.prompt_logprobs
    assert first is None
    return [entry for entry in rest if entry is not None]


def test_they_equal_transformers_at_every_position(whole: RequestOutput) -> None:
    path = Path(ModelFiles(locate(None)).path)
    reference = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    with torch.inference_mode():
        logprobs = reference.eval()(torch.tensor([whole.prompt_token_ids])).logits[0].log_softmax(-1)
    entries = known(whole)
    assert [entry.token_id for entry in entries] == whole.prompt_token_ids[1:]
    assert len(entries) > 128
    for position, entry in enumerate(entries):
        row = logprobs[position]
        assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=1e-2)
        assert entry.rank == int((row > row[entry.token_id]).sum()) + 1
        assert [value for _, value in entry.top] == pytest.approx(row.topk(3).values.tolist(), abs=1e-2)


@pytest.mark.parametrize("chunk", [16, 64])
def test_they_are_the_same_bits_in_any_chunks(whole: RequestOutput, chunk: int) -> None:
    chunked = LLM(dtype="float32", max_num_batched_tokens=chunk)
    assert score(chunked, PROMPT).prompt_logprobs == whole.prompt_logprobs
    assert score(chunked, PROMPT, "2 + 2 =", "the sea " * 40).prompt_logprobs == whole.prompt_logprobs


def test_a_prompt_in_the_prefix_cache_is_computed_again_for_them(llm: LLM, whole: RequestOutput) -> None:
    plain = SamplingParams(temperature=0.0, max_tokens=2)
    assert llm.generate([PROMPT], plain, use_tqdm=False)[0].num_cached_tokens > 64
    again = score(llm, PROMPT)
    assert again.num_cached_tokens == 0
    assert again.prompt_logprobs == whole.prompt_logprobs
    assert again.outputs[0].token_ids == whole.outputs[0].token_ids


def test_a_prompt_alone_is_scored_without_an_output(llm: LLM, whole: RequestOutput) -> None:
    alone = score(llm, PROMPT, max_tokens=0)
    assert alone.prompt_logprobs == whole.prompt_logprobs
    assert (alone.outputs[0].token_ids, alone.outputs[0].finish_reason) == ([], "length")


def test_a_prompt_of_one_token_has_none(llm: LLM) -> None:
    assert score(llm, [100]).prompt_logprobs == [None]


def test_choices_share_them(llm: LLM) -> None:
    params = SamplingParams(n=2, seed=1, max_tokens=2, prompt_logprobs=0)
    result = llm.generate(["a b c"], params, use_tqdm=False)[0]
    assert [entry.top for entry in known(result)] == [()] * (len(result.prompt_token_ids) - 1)
    assert [len(output.token_ids) for output in result.outputs] == [2, 2]


def test_memory_of_a_long_prompt_is_bounded(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    model = llm._engine._runner._model  # type: ignore[attr-defined]
    compute = model.logits

    def logits(stream: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        sizes.append(len(rows))
        return compute(stream, rows)

    monkeypatch.setattr(model, "logits", logits)
    score(llm, [100] * 400, count=0, max_tokens=0)
    assert sum(sizes) == 399
    assert max(sizes) <= 64


def test_log_probabilities_that_are_no_numbers_end_the_request_alone(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    model = llm._engine._runner._model  # type: ignore[attr-defined]
    compute = model.logits
    monkeypatch.setattr(model, "logits", lambda stream, rows: compute(stream, rows) * torch.nan)
    with pytest.raises(RequestError, match="not finite"):
        score(llm, "a b c", max_tokens=0)
