"""Beam search: transformers' sequences on the embedded model, and the rules by which a search ends on made-up ones."""

import asyncio
import functools
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from pelton.engine.beam_search import BeamSequence, BeamSettings, beam_search
from pelton.engine.delta import to_delta
from pelton.engine.llm import LLM
from pelton.engine.protocol import DeltaSink
from pelton.engine.text import TextStream
from pelton.errors import RequestError
from pelton.types import Delta, SamplingParams, TokenLogprobs
from pelton.weights.hub import locate
from pelton.weights.model_files import ModelFiles

END = 9


class Stepping:
    """An LLM's engine as an EngineClient, stepped by the event loop."""

    def __init__(self, llm: LLM) -> None:
        self.info = llm.info
        self.tokenizer = llm.tokenizer
        self._engine = llm._engine
        self._ids = itertools.count(10**6)
        self._sinks: dict[int, tuple[TextStream, DeltaSink]] = {}
        self._task: asyncio.Task[None] | None = None

    def submit(
        self, prompt_ids: Sequence[int], params: SamplingParams, sink: DeltaSink, *, priority: int = 0, salt: str = ""
    ) -> Callable[[], object]:
        request_id = next(self._ids)
        assert self._engine.add(request_id, prompt_ids, params, salt=salt) is None
        self._sinks[request_id] = TextStream(self.tokenizer, params), sink
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return functools.partial(self._engine.abort, request_id)

    async def _run(self) -> None:
        while self._engine.has_work:
            for output in self._engine.step():
                text, sink = self._sinks[output.request_id]
                sink(to_delta(text, output))
            await asyncio.sleep(0)


class Tree:
    """An EngineClient whose predictions are given: of the output so far, the probabilities of what may follow."""

    def __init__(self, predictions: dict[tuple[int, ...], dict[int, float]], error: Exception | None = None) -> None:
        self.predictions = predictions
        self.error = error
        self.num_live = 0
        self.asked: list[tuple[int, ...]] = []
        self.info = type("Info", (), {"eos_token_ids": (END,)})

    def submit(
        self, prompt_ids: Sequence[int], params: SamplingParams, sink: DeltaSink, *, priority: int = 0, salt: str = ""
    ) -> Callable[[], None]:
        output = tuple(prompt_ids[1:])
        self.asked.append(output)
        self.num_live += 1

        def end() -> None:
            self.num_live -= 1

        asyncio.get_running_loop().call_soon(sink, self.error or self._delta(output))
        return end

    def _delta(self, output: tuple[int, ...]) -> Delta:
        known = self.predictions.get(output, {1: 0.6, 2: 0.4})
        if not known:
            return Delta(finish_reason="abort")
        top = sorted(((token, float(torch.tensor(p).log())) for token, p in known.items()), key=lambda item: -item[1])
        entry = TokenLogprobs(top[0][0], top[0][1], 1, tuple(top))
        return Delta(token_ids=(entry.token_id,), logprobs=(entry,), finish_reason="length")


def search(engine: Any, prompt: Sequence[int], params: SamplingParams, **settings: Any) -> list[BeamSequence]:
    sequences = asyncio.run(beam_search(engine, prompt, params, BeamSettings(**settings)))
    assert len(sequences) == settings["width"]
    return sequences


def found(sequences: list[BeamSequence]) -> list[tuple[tuple[int, ...], str | None]]:
    return [(sequence.token_ids, sequence.finish_reason) for sequence in sequences]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(dtype="float32")


@pytest.fixture(scope="module")
def reference() -> transformers.PreTrainedModel:
    path = Path(ModelFiles(locate(None)).path)
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    return model.eval()


@pytest.mark.parametrize(
    ("prompt", "width", "settings"),
    [
        ("The capital of France is", 2, {}),
        ("<|im_start|>user\nSay yes.<|im_end|>\n<|im_start|>assistant\n", 3, {"length_penalty": 0.5}),
        ("<|im_start|>user\nSay yes.<|im_end|>\n<|im_start|>assistant\n", 4, {"early_stopping": True}),
        ("<|im_start|>user\n2 + 2 =<|im_end|>\n<|im_start|>assistant\n", 4, {"length_penalty": -1.0}),
    ],
)
def test_the_sequences_are_those_of_transformers(
    llm: LLM, reference: transformers.PreTrainedModel, prompt: str, width: int, settings: dict[str, Any]
) -> None:
    prompt_ids = llm.tokenizer.encode(prompt)
    with torch.inference_mode():
        expected = reference.generate(
            torch.tensor([prompt_ids]),
            num_beams=width,
            num_return_sequences=width,
            max_new_tokens=12,
            do_sample=False,
            eos_token_id=list(llm.info.eos_token_ids),
            pad_token_id=llm.info.eos_token_ids[0],
            repetition_penalty=1.0,
            **settings,
        )
    ends = llm.info.eos_token_ids
    outputs = [_until_end(row[len(prompt_ids) :].tolist(), ends) for row in expected]
    ours = search(Stepping(llm), prompt_ids, SamplingParams(max_tokens=12), width=width, **settings)
    assert [list(sequence.token_ids) for sequence in ours] == outputs
    assert llm.stats.num_used_pages == 0
    reasons = ["stop" if output[-1] in ends else "length" for output in outputs]
    assert [sequence.finish_reason for sequence in ours] == reasons


def _until_end(token_ids: list[int], ends: Sequence[int]) -> list[int]:
    first = next((index for index, token in enumerate(token_ids) if token in ends), len(token_ids) - 1)
    return token_ids[: first + 1]


def test_a_less_likely_first_token_may_lead_to_the_likeliest_sequence() -> None:
    tree = Tree({(): {1: 0.6, 2: 0.4}, (1,): {3: 0.5, 4: 0.5}, (2,): {5: 1.0, 6: 1e-9}})
    best, second = search(tree, [0], SamplingParams(max_tokens=2), width=2)
    assert best.token_ids == (2, 5)
    assert second.token_ids == (1, 3)  # as likely as (1, 4): the first of equals
    assert best.logprob == pytest.approx(torch.tensor(0.4).log().item())
    assert tree.num_live == 0


def test_length_penalty_chooses_between_short_and_long() -> None:
    tree = Tree({(): {1: 0.55, END: 0.45}, (1,): {1: 0.6, END: 0.4}, (1, 1): {END: 0.9, 1: 0.1}})
    params = SamplingParams(max_tokens=4)
    assert search(tree, [0], params, width=2, length_penalty=0.0)[0].token_ids == (END,)
    assert search(tree, [0], params, width=2, length_penalty=2.0)[0].token_ids == (1, 1, END)


def test_an_end_that_is_less_likely_than_what_fills_the_beam_is_none() -> None:
    tree = Tree({(): {1: 0.4, 2: 0.35, END: 0.2}, (1,): {3: 0.3, 4: 0.4, 5: 0.3}, (2,): {3: 0.3, 4: 0.4, 5: 0.3}})
    sequences = search(tree, [0], SamplingParams(max_tokens=2), width=2, length_penalty=0.0)
    assert found(sequences) == [((1, 4), "length"), ((2, 4), "length")]


def test_complete_sequences_are_no_more_than_the_beam_is_wide() -> None:
    tree = Tree({(): {1: 0.5, 2: 0.3, END: 0.2}, (1,): {END: 0.9, 3: 0.1}, (2,): {END: 0.9, 3: 0.1}})
    sequences = search(tree, [0], SamplingParams(max_tokens=5), width=3, length_penalty=0.0)
    assert [sequence.token_ids for sequence in sequences] == [(1, END), (2, END), (END,)]


def test_early_stopping_ends_with_the_first_complete_beam() -> None:
    tree = Tree({(): {1: 0.6, END: 0.4}, (1,): {2: 0.6, END: 0.4}})
    params = SamplingParams(max_tokens=8)
    early = found(search(tree, [0], params, width=2, length_penalty=3.0, early_stopping=True))
    assert sorted(early) == [((1, END), "stop"), ((END,), "stop")]
    assert len(tree.asked) == 2
    search(tree, [0], params, width=2, length_penalty=3.0)
    assert len(tree.asked) > 4


def test_ends_are_stop_tokens_and_the_end_of_sequence_unless_ignored() -> None:
    tree = Tree({(): {5: 0.7, END: 0.3}, (5,): {5: 0.9, END: 0.1}})
    params = SamplingParams(max_tokens=2, stop_token_ids=(5,))
    best, second = search(tree, [0], params, width=2)
    assert (best.token_ids, best.finish_reason, best.stop_reason) == ((5,), "stop", 5)
    assert (second.token_ids, second.finish_reason, second.stop_reason) == ((END,), "stop", None)
    ignored = search(tree, [0], SamplingParams(max_tokens=2, ignore_eos=True), width=2)
    assert found(ignored)[0] == ((5, 5), "length")
    assert all(sequence.finish_reason == "length" for sequence in ignored)


def test_nothing_ends_before_min_tokens() -> None:
    tree = Tree({(): {END: 0.9, 1: 0.1}, (1,): {END: 0.9, 1: 0.1}})
    assert found(search(tree, [0], SamplingParams(max_tokens=3), width=2))[0] == ((END,), "stop")
    sequences = search(tree, [0], SamplingParams(max_tokens=3, min_tokens=1), width=2)
    assert found(sequences)[0] == ((1, END), "stop")  # two tokens, as without a search: no end among the first one
    assert (END,) not in [sequence.token_ids for sequence in sequences]


def test_an_engine_that_stops_ends_the_search_with_abort() -> None:
    tree = Tree({(): {1: 0.6, END: 0.4}, (1,): {}})
    assert found(search(tree, [0], SamplingParams(max_tokens=3), width=2)) == [((END,), "stop"), ((1,), "abort")]
    assert tree.num_live == 0


def test_an_error_of_a_request_is_raised_and_the_others_are_aborted() -> None:
    tree = Tree({}, error=RequestError("planted"))
    with pytest.raises(RequestError, match="planted"):
        search(tree, [0], SamplingParams(max_tokens=3), width=2)
    assert tree.num_live == 0
