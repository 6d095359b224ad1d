"""Embeddings of the embedded model: the same bits whatever else happens in the engine."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch

from pelton.config import EngineConfig
from pelton.engine.build import load_model
from pelton.engine.describe import describe
from pelton.engine.engine import Engine
from pelton.engine.llm import LLM
from pelton.layers.context import LayerContext
from pelton.models.llama import LlamaForCausalLM
from pelton.runner.kv_cache import allocate_layers
from pelton.runner.runner import Runner
from pelton.sched.pages import PagePool
from pelton.sched.scheduler import Scheduler
from pelton.types import Output, Pooling, SamplingParams

LONG = "\n1. Carol has 20 apples. She gives some of them to Paul, who has none. How many are left?" * 7
TEXTS = ["the sea", "2 + 2 =", "a recipe for bread", LONG, "🫠"]
KINDS: list[Pooling] = ["last", "mean"]
EACH_KIND = pytest.mark.parametrize("pooling", KINDS)
GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
STORY = list(range(200, 226))

Vector = list[float]


@dataclass
class Loaded:
    """One loaded model, and engines of any shape around it."""

    model: LlamaForCausalLM
    context: LayerContext
    prompts: list[list[int]]

    def engine(self, *, budget: int = 256, num_pages: int = 128) -> Engine:
        info = describe_model().info
        kv = allocate_layers(info, num_pages, 16, torch.float32, torch.device("cpu"))
        scheduler = Scheduler(PagePool(num_pages, 16), max_batch_tokens=budget, max_running=64, max_model_len=256)
        return Engine(scheduler, Runner(self.model, kv, info, 16, self.context))


def describe_model():
    return describe(EngineConfig(dtype="float32", max_model_len=256))


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    described = describe_model()
    model, context = load_model(described.config, described.info, described.path)
    return Loaded(model, context, [described.tokenizer.encode(text) for text in TEXTS])


@pytest.fixture(scope="module")
def alone(loaded: Loaded) -> dict[Pooling, list[Vector]]:
    """Each prompt's vector with nothing else in its engine, computed in one step."""
    return {kind: [embed(loaded.engine(), [prompt], kind)[0] for prompt in loaded.prompts] for kind in KINDS}


def add(engine: Engine, first_id: int, prompts: Sequence[Sequence[int]], pooling: Pooling) -> None:
    for index, prompt in enumerate(prompts):
        assert engine.add(first_id + index, prompt, SamplingParams(max_tokens=0, pooling=pooling)) is None


def drain(engine: Engine) -> list[Output]:
    outputs: list[Output] = []
    while engine.has_work:
        outputs += engine.step()
    return outputs


def vectors_of(outputs: Sequence[Output], first_id: int) -> list[Vector]:
    """By id, of the requests from `first_id` on, which must end with their one output."""
    found = sorted((output for output in outputs if output.request_id >= first_id), key=lambda o: o.request_id)
    assert all((output.token_ids, output.finish_reason, output.error) == ((), "stop", None) for output in found)
    return [array("f", output.vector or b"").tolist() for output in found]


def embed(engine: Engine, prompts: Sequence[Sequence[int]], pooling: Pooling, first_id: int = 0) -> list[Vector]:
    add(engine, first_id, prompts, pooling)
    return vectors_of(drain(engine), first_id)


@EACH_KIND
@pytest.mark.parametrize("budget", [256, 100, 16])
def test_they_are_the_same_bits_in_any_batch_and_chunks(
    loaded: Loaded, alone: dict[Pooling, list[Vector]], pooling: Pooling, budget: int
) -> None:
    assert embed(loaded.engine(budget=budget), loaded.prompts, pooling) == alone[pooling]


@EACH_KIND
def test_they_and_generated_tokens_are_the_same_beside_each_other(
    loaded: Loaded, alone: dict[Pooling, list[Vector]], pooling: Pooling
) -> None:
    engine = loaded.engine()
    engine.add(0, STORY, GREEDY)
    expected = [token for output in drain(engine) for token in output.token_ids]
    engine.add(0, STORY, GREEDY)
    outputs = [output for _ in range(5) for output in engine.step()]
    add(engine, 1, loaded.prompts, pooling)
    outputs += drain(engine)
    assert [token for output in outputs for token in output.token_ids] == expected
    assert vectors_of(outputs, 1) == alone[pooling]
    assert engine.stats.num_used_pages == 0


@EACH_KIND
def test_they_are_the_same_bits_after_preemption(
    loaded: Loaded, alone: dict[Pooling, list[Vector]], pooling: Pooling
) -> None:
    # Four outputs take the pages that the prompt, at four tokens a step beside them, is about to fill.
    engine = loaded.engine(budget=8, num_pages=23)
    for index in range(4):
        engine.add(index, [*STORY, index], GREEDY)
    add(engine, 9, [loaded.prompts[3]], pooling)
    assert vectors_of(drain(engine), 9) == [alone[pooling][3]]
    assert engine.stats.num_preemptions > 0


@EACH_KIND
def test_only_the_last_state_may_come_after_cached_ones(
    loaded: Loaded, alone: dict[Pooling, list[Vector]], pooling: Pooling
) -> None:
    engine = loaded.engine()
    prompt = loaded.prompts[3]
    assert embed(engine, [prompt], pooling) == embed(engine, [prompt], pooling, 5) == [alone[pooling][3]]
    assert (engine.stats.prefix_cache_hits > 0) == (pooling == "last")


def test_a_prompt_may_fill_the_context(loaded: Loaded) -> None:
    assert len(embed(loaded.engine(), [[5] * 256], "last")[0]) == loaded.model.model.norm.weight.shape[0]
    refused = loaded.engine().add(0, [5] * 257, SamplingParams(max_tokens=0, pooling="last"))
    assert refused is not None and refused.finish_reason == "error"


def test_states_that_are_not_finite_are_an_error_of_their_request_alone(
    loaded: Loaded, alone: dict[Pooling, list[Vector]], monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = loaded.model.hidden
    monkeypatch.setattr(loaded.model, "hidden", lambda stream, rows: hidden(stream, rows) * torch.nan)
    engine = loaded.engine()
    add(engine, 0, loaded.prompts[:1], "mean")
    (output,) = drain(engine)
    assert output.error == "the model gave hidden states that are not finite"
    monkeypatch.undo()
    assert embed(engine, loaded.prompts[:1], "mean") == alone["mean"][:1]


def test_the_offline_engine_embeds_texts(alone: dict[Pooling, list[Vector]]) -> None:
    llm = LLM(dtype="float32", max_model_len=256, pooling_type="mean")
    assert llm.embed(TEXTS[:3]) == alone["mean"][:3]
    assert llm.embed(TEXTS[0]) == alone["mean"][:1]


def test_pooling_and_output_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="max_tokens must be 0"):
        SamplingParams(pooling="last")
