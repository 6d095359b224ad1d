"""The embedded model: greedy output equals transformers', and is the same whatever else happens in the engine."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import transformers

from instruction_sets import under
from pelton.engine.engine import Engine
from pelton.kernels.cpu import extension
from pelton.layers.context import LayerContext
from pelton.layers.scratch import Scratch
from pelton.models import build_model
from pelton.models.llama import LlamaForCausalLM
from pelton.runner.batch import BatchBuilder
from pelton.runner.kv_cache import allocate_layers
from pelton.runner.runner import Runner
from pelton.runner.state import RequestState
from pelton.sched.pages import PagePool
from pelton.sched.scheduler import Scheduler
from pelton.types import NewRequest, Plan, Row, SamplingParams
from pelton.weights.checkpoint import open_checkpoint
from pelton.weights.hub import locate
from pelton.weights.load import load_weights
from pelton.weights.model_files import ModelFiles

CPU = torch.device("cpu")
PAGE_SIZE = 16
MAX_MODEL_LEN = 1024
TOPICS = ["the sea", "prime numbers", "a recipe for bread", "def fibonacci(n):", "Paris", "die Katze", "2 + 2 =", "🫠"]
DENSE, NATIVE, INT8, INT4 = "dense", "native", "int8", "int4"
INT8_KV = "dense with int8 keys and values"
# The portable kernels of integer products take minutes for a whole model.
HAS_VECTORS = extension is not None and extension.features()["avx2"]
FORMATS = [DENSE, INT8_KV, NATIVE, INT8, INT4] if HAS_VECTORS else [DENSE, INT8_KV]
EVERY_FORMAT = pytest.mark.parametrize("harness", FORMATS, indirect=True)
EVERY_CACHE = pytest.mark.parametrize("harness", [DENSE, INT8_KV], indirect=True)
PROSE = """The lighthouse stood at the end of a long spit of sand, and in winter the sea came over the road twice a day.
My grandfather kept the lamp for thirty years. He used to say that the work was simple, but that simple work was the
hardest to do well, because nobody would ever notice it until the night when it failed. Every evening he climbed the
stairs, cleaned the glass, filled the tank with oil and wound the clockwork that turned the lens. Then he wrote the
weather and the names of the ships in a large book, and he sat by the window until morning. When the lamp was replaced
by an electric one, the company offered him a flat in the town. He took it, but he never slept there before sunrise.
Many years later I found the book in a box under his bed. On most of the pages there was nothing but wind, rain, and
the time at which the light had been lit. On the last page, in the same small and careful hand, he had written that the
sea was calm, that all the ships had come home, and that he did not know what he should do tomorrow."""


def load(files: ModelFiles, context: LayerContext, weight_format: str) -> LlamaForCausalLM:
    model = build_model(files.info(), context)
    source_dtype = context.dtype if context.quantize == "none" else None
    checkpoint = open_checkpoint(files.path, source_dtype, stored=weight_format == NATIVE)
    load_weights(model, checkpoint, model.tied_names)
    return model


class Harness:
    """Engines of any shape around one loaded model."""

    def __init__(
        self,
        files: ModelFiles,
        dtype: torch.dtype,
        weight_format: str = DENSE,
        kv_dtype: torch.dtype | None = None,
    ) -> None:
        self.info = files.info()
        self.kv_dtype = kv_dtype or dtype
        quantize = weight_format if weight_format in (INT8, INT4) else "none"
        self.context = LayerContext(dtype, CPU, MAX_MODEL_LEN, Scratch(CPU), quantize, stored=weight_format == NATIVE)
        self.model = load(files, self.context, weight_format)

    def engine(
        self, *, budget: int = 512, max_running: int = 64, num_pages: int = 1024, caching: bool = False
    ) -> Engine:
        kv = allocate_layers(self.info, num_pages, PAGE_SIZE, self.kv_dtype, CPU)
        scheduler = Scheduler(
            PagePool(num_pages, PAGE_SIZE),
            max_batch_tokens=budget,
            max_running=max_running,
            max_model_len=MAX_MODEL_LEN,
            eos_token_ids=self.info.eos_token_ids,
            enable_prefix_caching=caching,
        )
        return Engine(scheduler, Runner(self.model, kv, self.info, PAGE_SIZE, self.context))

    def perplexity(self, token_ids: Sequence[int]) -> float:
        """Of all but the first token, computed in one step."""
        kv = allocate_layers(self.info, 64, PAGE_SIZE, self.kv_dtype, CPU)
        states = {1: RequestState(NewRequest(1, tuple(token_ids), SamplingParams()))}
        plan = Plan((Row(1, 0, len(token_ids), tuple(range(64)), sample=False),))
        with torch.inference_mode():
            stream = self.model(BatchBuilder(PAGE_SIZE, CPU).build(plan, states), kv)
            logits = self.model.logits(stream, torch.arange(len(token_ids)))
        return torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(token_ids[1:])).exp().item()


def run(
    engine: Engine, prompts: Sequence[Sequence[int]], max_tokens: int, first_id: int = 0, *, ignore_eos: bool = False
) -> list[list[int]]:
    """Greedy output ids of all prompts, submitted at once."""
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=ignore_eos)
    outputs: dict[int, list[int]] = {}
    for index, prompt in enumerate(prompts):
        assert engine.add(first_id + index, prompt, params) is None
        outputs[first_id + index] = []
    while engine.has_work:
        for output in engine.step():
            assert output.error is None
            if output.request_id in outputs:
                outputs[output.request_id] += output.token_ids
    return list(outputs.values())


@pytest.fixture(scope="module")
def files() -> ModelFiles:
    return ModelFiles(locate(None))


@pytest.fixture(scope="module")
def prompts(files: ModelFiles) -> list[list[int]]:
    """Twenty prompts of 1 to about 300 tokens."""
    tokenizer = files.tokenizer()
    rng = random.Random(7)
    texts = [f"{rng.choice(['Tell me about', 'Write on', 'Here is'])} {topic}" for topic in TOPICS]
    texts += [" and ".join(rng.choices(TOPICS, k=count)) for count in (1, 2, 3, 5, 8, 13, 21, 30, 40, 50, 60)]
    return [tokenizer.encode(text) for text in texts] + [[rng.randrange(100, 40000)]]


@pytest.fixture(scope="module", params=[DENSE])
def harness(files: ModelFiles, request: pytest.FixtureRequest) -> Harness:
    if request.param == INT8_KV:
        return Harness(files, torch.bfloat16, DENSE, torch.int8)
    return Harness(files, torch.bfloat16, request.param)


@pytest.fixture(scope="module")
def alone(harness: Harness, prompts: list[list[int]]) -> list[list[int]]:
    """Each prompt's greedy output with nothing else in the engine."""
    return [run(harness.engine(), [prompt], 24)[0] for prompt in prompts]


@pytest.fixture(scope="module")
def reference(files: ModelFiles) -> transformers.PreTrainedModel:
    path = Path(files.path)
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    return model.eval()


def choices(reference: transformers.PreTrainedModel, prompt: list[int], output: list[int]) -> list[int]:
    """What the reference would choose after the prompt and each beginning of the output.

    If that is the output itself, so is the reference's whole continuation.
    """
    with torch.inference_mode():
        logits = reference(torch.tensor([prompt + output])).logits[0]
    return logits[len(prompt) - 1 : -1].argmax(-1).tolist()


def test_greedy_output_equals_transformers_on_the_same_weights(
    files: ModelFiles, prompts: list[list[int]], reference: transformers.PreTrainedModel
) -> None:
    outputs = run(Harness(files, torch.float32).engine(), prompts, 64)
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output == choices(reference, prompt, output)
        assert len(output) == 64 or output[-1] in files.info().eos_token_ids


def test_embeddings_equal_the_hidden_states_of_transformers(
    files: ModelFiles, prompts: list[list[int]], reference: transformers.PreTrainedModel
) -> None:
    engine = Harness(files, torch.float32).engine(budget=16)
    chosen = [prompts[0], prompts[7], prompts[12]]
    for index, prompt in enumerate(chosen):
        engine.add(index, prompt, SamplingParams(max_tokens=0, pooling="last"))
        engine.add(index + 3, prompt, SamplingParams(max_tokens=0, pooling="mean"))
    vectors: dict[int, bytes | None] = {}
    while engine.has_work:
        vectors |= {output.request_id: output.vector for output in engine.step()}
    for index, prompt in enumerate(chosen):
        with torch.inference_mode():
            states = reference.base_model(torch.tensor([prompt])).last_hidden_state[0].double()
        for request_id, expected in ((index, states[-1]), (index + 3, states.mean(0))):
            vector = torch.frombuffer(bytearray(vectors[request_id] or b""), dtype=torch.float32).double()
            assert vector.norm().item() == pytest.approx(1.0, abs=1e-6)
            assert (vector @ expected / expected.norm()).item() > 0.99999


@under("portable", "avx2")
def test_greedy_output_equals_transformers_on_machines_without_avx512(
    instruction_set: str, files: ModelFiles, prompts: list[list[int]], reference: transformers.PreTrainedModel
) -> None:
    chosen, length = (prompts[:3], 8) if instruction_set == "portable" else (prompts[:8], 16)
    outputs = run(Harness(files, torch.float32).engine(), chosen, length, ignore_eos=True)
    for prompt, output in zip(chosen, outputs, strict=True):
        assert output == choices(reference, prompt, output)
        assert len(output) == length


@EVERY_FORMAT
def test_greedy_output_is_the_same_in_a_batch_of_64(
    harness: Harness, prompts: list[list[int]], alone: list[list[int]]
) -> None:
    rng = random.Random(3)
    others = [[rng.randrange(100, 40000) for _ in range(rng.randrange(1, 80))] for _ in range(64 - len(prompts))]
    assert run(harness.engine(), [*prompts, *others], 24)[: len(prompts)] == alone


@EVERY_FORMAT
def test_greedy_output_is_the_same_in_chunks_of_seven(
    harness: Harness, prompts: list[list[int]], alone: list[list[int]]
) -> None:
    assert run(harness.engine(budget=7), prompts, 24) == alone


@pytest.mark.parametrize("budget", [1, 64, 512])
def test_greedy_output_is_the_same_with_any_chunk_size(
    budget: int, harness: Harness, prompts: list[list[int]], alone: list[list[int]]
) -> None:
    chosen = slice(0, 10) if budget == 1 else slice(None)  # one token a step takes its time
    assert run(harness.engine(budget=budget), prompts[chosen], 24) == alone[chosen]


@EVERY_CACHE
def test_greedy_output_is_the_same_when_requests_are_preempted(harness: Harness, prompts: list[list[int]]) -> None:
    chosen = prompts[:6]
    # To the full length whatever the last bits say: six outputs of 100 tokens do not fit into 20 pages together.
    expected = run(harness.engine(), chosen, 100, ignore_eos=True)
    engine = harness.engine(num_pages=20)
    assert run(engine, chosen, 100, ignore_eos=True) == expected
    assert engine.stats.num_preemptions > 0


@EVERY_CACHE
def test_greedy_output_is_the_same_with_prefix_hits(
    harness: Harness, prompts: list[list[int]], alone: list[list[int]]
) -> None:
    engine = harness.engine(caching=True)
    assert run(engine, prompts, 24) == alone
    assert run(engine, prompts, 24, first_id=100) == alone
    assert engine.stats.prefix_cache_hits > 500


def test_greedy_output_is_the_same_after_aborts_beside_it(
    harness: Harness, prompts: list[list[int]], alone: list[list[int]]
) -> None:
    engine = harness.engine(budget=64, caching=True)
    rng = random.Random(5)
    noise = range(1000, 1020)
    for request_id in noise:
        prompt = prompts[rng.randrange(len(prompts))] + [rng.randrange(100, 40000) for _ in range(20)]
        engine.add(request_id, prompt, SamplingParams(temperature=1.0, seed=request_id, max_tokens=200))
    params = SamplingParams(temperature=0.0, max_tokens=24)
    outputs: dict[int, list[int]] = {index: [] for index in range(len(prompts))}
    for index, prompt in enumerate(prompts):
        engine.add(index, prompt, params)
    victims = list(noise)
    while engine.has_work:
        if victims and rng.random() < 0.5:
            engine.abort(victims.pop())
        for output in engine.step():
            if output.request_id in outputs:
                outputs[output.request_id] += output.token_ids
    assert list(outputs.values()) == alone
    assert engine.stats.num_aborted > 5


def test_seeded_sampling_is_the_same_in_any_batch(harness: Harness, prompts: list[list[int]]) -> None:
    params = SamplingParams(temperature=0.9, top_p=0.95, seed=42, max_tokens=16)

    def sample(num_neighbours: int) -> list[int]:
        engine = harness.engine(budget=100)
        for index in range(num_neighbours):
            engine.add(10 + index, prompts[index], SamplingParams(temperature=1.0, seed=index, max_tokens=30))
        engine.add(0, prompts[12], params)
        return [
            token
            for _ in range(200)
            for output in engine.step()
            if output.request_id == 0
            for token in output.token_ids
        ]

    assert len(sample(0)) == 16
    assert sample(0) == sample(9)


@pytest.mark.skipif(not HAS_VECTORS, reason="needs AVX2")
@pytest.mark.parametrize("weight_format", [NATIVE, INT8, INT4])
def test_integer_products_predict_text_as_well_as_dense_ones(files: ModelFiles, weight_format: str) -> None:
    token_ids = files.tokenizer().encode(PROSE)
    assert len(token_ids) > 200
    reference = Harness(files, torch.float32).perplexity(token_ids)
    rounded = Harness(files, torch.bfloat16, weight_format).perplexity(token_ids)
    assert 5 < reference < 50
    assert abs(rounded / reference - 1) < 0.02


@pytest.mark.parametrize(("kv_dtype", "largest_change"), [(torch.int8, 0.005), (torch.float8_e4m3fn, 0.02)])
def test_caches_of_8_bits_predict_text_as_well_as_dense_ones(
    files: ModelFiles, kv_dtype: torch.dtype, largest_change: float
) -> None:
    token_ids = files.tokenizer().encode(PROSE)
    expected, rounded = (Harness(files, torch.bfloat16, DENSE, kind).perplexity(token_ids) for kind in (None, kv_dtype))
    assert expected != rounded
    assert abs(rounded / expected - 1) < largest_change
