"""Grammars on the embedded model: what they promise of the output, and that they change no neighbour."""

import functools
import json
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import jsonschema
import msgspec
import pytest

from pelton import LLM, SamplingParams
from pelton.config import EngineConfig
from pelton.engine import grammars as module
from pelton.engine.build import KV_DTYPES, load_compiler, load_model
from pelton.engine.describe import describe
from pelton.engine.engine import Engine
from pelton.engine.grammars import Compiler, Grammars
from pelton.errors import RequestError
from pelton.runner.kv_cache import allocate_layers
from pelton.runner.runner import Runner
from pelton.sched.pages import PagePool
from pelton.sched.scheduler import Scheduler
from pelton.structured.masks import Words
from pelton.types import Output

PAGE_SIZE = 16
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "kind": {"enum": ["person", "animal", "a company with a long name"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "kind", "tags"],
    "additionalProperties": False,
}
JSON_GRAMMAR = "start: %json " + json.dumps(SCHEMA | {"x-guidance": {"whitespace_flexible": False}})
PHONE = r"start: /(\d{3}-){2}\d{4}/"
PROMPT = "Here is what we know about number {}:\n"


@dataclass
class Answer:
    token_ids: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)  # tokens of each output
    finish_reason: str | None = None
    error: str | None = None
    error_status: int = 0

    def take(self, output: Output) -> None:
        assert self.finish_reason is None, "output after the end"
        self.token_ids += output.token_ids
        self.sizes.append(len(output.token_ids))
        self.finish_reason, self.error, self.error_status = output.finish_reason, output.error, output.error_status


class Harness:
    """Engines of any shape around one loaded model."""

    def __init__(self) -> None:
        described = describe(EngineConfig(max_model_len=512, kv_cache_dtype="auto"))
        self.info, self.config, self.tokenizer = described.info, described.config, described.tokenizer
        self.model, self.context = load_model(self.config, self.info, described.path)
        self.load: Callable[[], Compiler] = functools.cache(functools.partial(load_compiler, self.info, described.path))

    def engine(self, *, budget: int = 512, num_pages: int = 512, load: Callable[[], Compiler] | None = None) -> Engine:
        kv = allocate_layers(
            self.info, num_pages, PAGE_SIZE, KV_DTYPES[self.config.kv_cache_dtype], self.context.device
        )
        scheduler = Scheduler(
            PagePool(num_pages, PAGE_SIZE),
            max_batch_tokens=budget,
            max_running=64,
            max_model_len=512,
            eos_token_ids=self.info.eos_token_ids,
        )
        grammars = Grammars(load or self.load, self.info.vocab_size, self.info.eos_token_ids)
        return Engine(scheduler, Runner(self.model, kv, self.info, PAGE_SIZE, self.context), grammars)

    def run(self, engine: Engine, params: Sequence[SamplingParams]) -> list[Answer]:
        answers = [Answer() for _ in params]
        for index, each in enumerate(params):
            refused = engine.add(index, self.tokenizer.encode(PROMPT.format(index)), each)
            assert refused is None
        while engine.has_work:
            for output in engine.step():
                answers[output.request_id].take(output)
        return answers

    def text(self, answer: Answer) -> str:
        assert answer.finish_reason == "stop", answer
        return self.tokenizer.decode(answer.token_ids, continuation=True)


@pytest.fixture(scope="module")
def harness() -> Harness:
    return Harness()


def sampled(grammar: str | None, seed: int, max_tokens: int = 250, **settings: object) -> SamplingParams:
    return SamplingParams(temperature=1.2, seed=seed, max_tokens=max_tokens, grammar=grammar, **settings)  # type: ignore[arg-type]


def test_json_of_20_seeds_parses_and_validates(harness: Harness) -> None:
    answers = harness.run(harness.engine(), [sampled(JSON_GRAMMAR, seed) for seed in range(20)])
    texts = [harness.text(answer) for answer in answers]
    for text in texts:
        jsonschema.validate(json.loads(text), SCHEMA)
        assert text == text.strip()
    assert len(set(texts)) > 15
    assert sum(max(answer.sizes) > 1 for answer in answers) == 20, "keys are forced, and cost no step each"


@pytest.mark.parametrize("logprobs", [None, 2])
def test_regex_and_choices_are_matched_whole(harness: Harness, logprobs: int | None) -> None:
    choices = ['start: "a" | "ab"'] * 12 + ['start: "🐈" | "🐕"'] * 12 + [PHONE] * 4 + ["start: /.é./"] * 4
    params = [sampled(grammar, seed, logprobs=logprobs) for seed, grammar in enumerate(choices)]
    answers = harness.run(harness.engine(), params)
    texts = [harness.text(answer) for answer in answers]
    assert set(texts[:12]) == {"a", "ab"}
    assert set(texts[12:24]) <= {"🐈", "🐕"}
    assert all(re.fullmatch(r"(\d{3}-){2}\d{4}", text) for text in texts[24:28])
    assert all(re.fullmatch(r".é.", text) for text in texts[28:])
    assert all(answer.token_ids[-1] in harness.info.eos_token_ids for answer in answers)
    if logprobs is not None:  # every token is chosen, and has its alternatives
        assert all(set(answer.sizes) == {1} for answer in answers)


def test_an_output_cut_by_length_says_so(harness: Harness) -> None:
    whole, cut = (harness.run(harness.engine(), [sampled(JSON_GRAMMAR, 3, length)])[0] for length in (250, 9))
    assert cut.finish_reason == "length"
    assert cut.token_ids == whole.token_ids[:9]


def test_constrained_outputs_are_the_same_alone_batched_chunked_and_preempted(harness: Harness) -> None:
    letters = 'start: /([a-z]{3,8} ){30}/ "that is all, and nothing more."'
    grammars = [letters, None, None, PHONE, JSON_GRAMMAR, JSON_GRAMMAR]
    params = [sampled(grammar, 7 + index, 60, ignore_eos=grammar is None) for index, grammar in enumerate(grammars)]
    params[5] = msgspec.structs.replace(params[5], temperature=0.0)
    alone = []
    for index, each in enumerate(params):
        engine = harness.engine()
        prompt = harness.tokenizer.encode(PROMPT.format(index))
        assert engine.add(index, prompt, each) is None
        answer = Answer()
        while engine.has_work:
            for output in engine.step():
                answer.take(output)
        alone.append(answer.token_ids)
    for engine, preempts in (
        (harness.engine(), False),
        (harness.engine(budget=7), False),
        (harness.engine(num_pages=11), True),  # the first three alone need 15
    ):
        assert [answer.token_ids for answer in harness.run(engine, params)] == alone
        assert (engine.stats.num_preemptions > 0) == preempts


def test_forced_tokens_change_no_text(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    params = [SamplingParams(temperature=0.0, max_tokens=100, grammar=JSON_GRAMMAR)]
    jumped = harness.run(harness.engine(), params)[0]
    monkeypatch.setattr(module._Constraint, "jumps", property(lambda self: False))
    stepped = harness.run(harness.engine(), params)[0]
    assert set(stepped.sizes) == {1}
    assert len(jumped.sizes) < len(stepped.sizes)
    jsonschema.validate(json.loads(harness.text(jumped)), SCHEMA)
    jsonschema.validate(json.loads(harness.text(stepped)), SCHEMA)


def test_neighbours_of_constrained_rows_are_untouched(harness: Harness) -> None:
    free = [SamplingParams(temperature=0.0, max_tokens=30)] * 3
    expected = [answer.token_ids for answer in harness.run(harness.engine(), free)]
    answers = harness.run(harness.engine(), [*free, *(sampled(JSON_GRAMMAR, seed) for seed in range(4))])
    assert [answer.token_ids for answer in answers[:3]] == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"grammar": "start: /a(/"}, "the grammar cannot be used"),
        ({"grammar": 'start: "a" | "ab"', "min_tokens": 9}, "no token is allowed: the grammar"),
        ({"grammar": 'start: "a"', "allowed_token_ids": (500,)}, "no token is allowed: the grammar"),
        ({"grammar": 'start: "a"', "logit_bias": {500: 100.0}}, "no token is allowed: the grammar"),
        ({"grammar": 'start: x\nx: x x x | x x | /[a-z]+/ | " "', "logit_bias": {216: 100.0}}, "the grammar"),
    ],
)
def test_what_cannot_be_obeyed_ends_its_own_request_only(
    harness: Harness, settings: dict[str, object], message: str
) -> None:
    free = SamplingParams(temperature=0.0, max_tokens=20)
    expected = harness.run(harness.engine(), [free])[0].token_ids
    engine = harness.engine()
    neighbour, bad = harness.run(engine, [free, SamplingParams(max_tokens=200, seed=0, **settings)])  # type: ignore[arg-type]
    assert (bad.finish_reason, bad.error_status) == ("error", 400)
    assert message in (bad.error or "")
    assert neighbour.token_ids == expected
    assert engine.stats.num_used_pages == 0


def test_ignore_eos_makes_an_output_as_long_as_its_grammar_allows(harness: Harness) -> None:
    answers = harness.run(harness.engine(), [sampled('start: "a" | "ab"', seed, ignore_eos=True) for seed in range(8)])
    assert {harness.text(answer) for answer in answers} == {"ab"}


def test_others_run_while_a_grammar_is_compiled_and_it_may_be_given_up(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    class Slow:
        def matcher(self, grammar: str, words: Words) -> object:
            go_on.wait(20)
            raise RequestError("given up")

    monkeypatch.setattr(module, "COMPILE_SECONDS", 0.3)
    engine = harness.engine(load=Slow)  # type: ignore[arg-type]
    try:
        free, held = harness.run(engine, [SamplingParams(max_tokens=3, ignore_eos=True), sampled(PHONE, 0)])
        assert len(free.token_ids) == 3
        assert (held.error_status, held.token_ids) == (400, [])
        assert "takes longer than 0.3 s" in (held.error or "")
        assert engine.add(9, [1, 2], sampled(PHONE, 0)) is None
        assert engine.stats.num_waiting == 1
        aborted = engine.abort(9)
        assert aborted is not None and aborted.finish_reason == "abort"
        assert not engine.has_work
    finally:
        go_on.set()


def test_a_late_mask_costs_its_own_row_a_step_and_never_its_place(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [answer.token_ids for answer in harness.run(harness.engine(), [sampled(PHONE, 5), sampled(None, 6, 10)])]
    monkeypatch.setattr(module, "_GRACE_SECONDS", 0.0)
    fill = Grammars._fill
    monkeypatch.setattr(Grammars, "_fill", lambda self, part: (threading.Event().wait(0.05), fill(self, part))[1])
    engine = harness.engine()
    answers = harness.run(engine, [sampled(PHONE, 5), sampled(None, 6, 10)])
    assert [answer.token_ids for answer in answers] == expected
    monkeypatch.setattr(module, "MASK_SECONDS", 0.01)
    late = harness.run(harness.engine(), [sampled(PHONE, 5)])[0]
    assert (late.finish_reason, late.error_status) == ("error", 400)


def test_offline_generation_obeys_grammars_and_raises_for_a_bad_one() -> None:
    llm = LLM(max_model_len=256)
    output = llm.generate("Call me at", sampled(PHONE, 1), use_tqdm=False)[0].outputs[0]
    assert re.fullmatch(r"(\d{3}-){2}\d{4}", output.text)
    assert (output.finish_reason, output.stop_reason) == ("stop", None)
    with pytest.raises(RequestError, match="the grammar cannot be used"):
        llm.generate(["one", "two"], [sampled(PHONE, 1), sampled("start: nothing", 1)], use_tqdm=False)
    assert llm.stats.num_used_pages == llm.stats.num_running == 0
