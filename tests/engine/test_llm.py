"""Offline generation through `pelton.LLM` on the embedded model."""

import pytest

from pelton import LLM, SamplingParams


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(max_model_len=512)


def test_prompts_of_both_kinds_are_completed_in_order(llm: LLM) -> None:
    ids = llm.tokenizer.encode("The capital of France is")
    params = SamplingParams(temperature=0, max_tokens=6)
    outputs = llm.generate(["The capital of Germany is", ids], params, use_tqdm=False)
    assert [output.prompt for output in outputs] == ["The capital of Germany is", None]
    assert "Berlin" in outputs[0].outputs[0].text
    assert "Paris" in outputs[1].outputs[0].text
    assert outputs[1].prompt_token_ids == ids
    for output in outputs:
        completion = output.outputs[0]
        assert completion.text == llm.tokenizer.decode(completion.token_ids, continuation=True)
        assert (len(completion.token_ids), completion.finish_reason) == (6, "length")


def test_a_single_list_of_ids_is_one_prompt(llm: LLM) -> None:
    assert len(llm.generate([1, 2, 3], SamplingParams(max_tokens=1), use_tqdm=False)) == 1


def test_choices_are_distinct_and_come_again_with_their_seed(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=42, max_tokens=12)
    first, second = (llm.generate(["Once upon a time"], params, use_tqdm=False)[0] for _ in range(2))
    texts = [completion.text for completion in first.outputs]
    assert len(set(texts)) == 3
    assert texts == [completion.text for completion in second.outputs]
    assert second.num_cached_tokens == 0  # four tokens are less than a page


def test_a_stop_string_ends_the_text_and_frees_the_engine(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=40, stop=("Paris",))
    completion = llm.generate(["The capital of France is"], params, use_tqdm=False)[0].outputs[0]
    assert completion.stop_reason == "Paris"
    assert "Paris" not in completion.text
    assert llm.stats.num_used_pages == 0


def test_logprobs_come_with_each_token(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=3, logprobs=2)
    completion = llm.generate(["The capital of France is"], params, use_tqdm=False)[0].outputs[0]
    assert completion.logprobs is not None
    assert [entry.token_id for entry in completion.logprobs] == completion.token_ids
    assert all(entry.rank == 1 and entry.top[0] == (entry.token_id, entry.logprob) for entry in completion.logprobs)


def test_a_chat_is_answered(llm: LLM) -> None:
    # No token of this answer is a near tie, in bfloat16 or float32: rounding does not change it.
    messages = [{"role": "user", "content": "How many days are in a week?"}]
    output = llm.chat(messages, SamplingParams(temperature=0, max_tokens=20))[0]
    assert "7 days" in output.outputs[0].text
    assert output.outputs[0].finish_reason == "stop"


def test_what_cannot_run_is_refused_and_leaves_nothing_behind(llm: LLM) -> None:
    with pytest.raises(ValueError, match="leaves no room"):
        llm.generate(["short", [5] * 600], SamplingParams(), use_tqdm=False)
    with pytest.raises(ValueError, match=r"logit_bias: token ids \[99999\] are out of vocabulary"):
        llm.generate(["short"], SamplingParams(logit_bias={99999: 1.0}), use_tqdm=False)
    assert llm.stats.num_used_pages == llm.stats.num_waiting == 0
    with pytest.raises(ValueError, match="2 given for 1 prompts"):
        llm.generate(["x"], [SamplingParams()] * 2, use_tqdm=False)
    with pytest.raises(ValueError, match="did you mean max_model_len"):
        LLM(max_modellen=5)
