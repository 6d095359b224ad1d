"""Sampling kernels against transformers' warpers, the exact distribution, plain torch, and their own batch."""

import math
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from instruction_sets import available, limited_to
from pelton.kernels.cpu import extension
from pelton.ops.reference_sampling import reference_sample
from pelton.ops.sampling import sample

VOCABULARY = 5003  # neither whole vectors nor whole blocks
KERNELS = ["reference", *([] if extension is None else available("portable", "avx2", "avx512"))]
FILTERS = [
    {},
    {"top_k": 7},
    {"top_k": 1500},
    {"top_k": VOCABULARY + 1},
    {"top_p": 0.3},
    {"top_p": 0.9},
    {"top_p": 1e-9},
    {"min_p": 0.2},
    {"min_p": 1.0},
    {"top_k": 20, "top_p": 0.5},
    {"top_k": 40, "min_p": 0.3, "temperature": 0.7},
    {"top_k": 50, "top_p": 0.9, "min_p": 0.05, "temperature": 1.8},
]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def random_logits(seed: int, rows: int = 1, size: int = VOCABULARY, scale: float = 2.0) -> torch.Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)) * scale


def controls(uniforms: list[float], settings: dict[str, float]) -> torch.Tensor:
    row = [settings.get("temperature", 1.0), settings.get("top_k", 0), settings.get("top_p", 1.0)]
    return torch.tensor([[*row, settings.get("min_p", 0.0), u] for u in uniforms], dtype=torch.float64)


def run(kernel: str, logits: torch.Tensor, rows: torch.Tensor) -> list[int]:
    if kernel == "reference":
        return reference_sample(logits, rows)[0].tolist()
    with limited_to(kernel):
        return sample(logits, rows)[0].tolist()


def draw(kernel: str, logits: torch.Tensor, settings: dict[str, float], count: int, seed: int = 0) -> list[int]:
    """`count` independent tokens of one row [1, V] of logits."""
    uniforms = np.random.default_rng(seed).random(count).tolist()
    return run(kernel, logits.expand(count, -1), controls(uniforms, settings))


def expected_support(logits: torch.Tensor, settings: dict[str, float]) -> list[int]:
    """The tokens that transformers' warpers leave."""
    scores = logits / settings.get("temperature", 1.0)
    ids = torch.zeros((1, 1), dtype=torch.int64)
    if 0 < settings.get("top_k", 0) < logits.shape[1]:
        scores = TopKLogitsWarper(int(settings["top_k"]))(ids, scores)
    if settings.get("top_p", 1.0) < 1.0:
        scores = TopPLogitsWarper(settings["top_p"])(ids, scores)
    if settings.get("min_p", 0.0) > 0.0:
        scores = MinPLogitsWarper(settings["min_p"])(ids, scores)
    return torch.isfinite(scores[0]).nonzero()[:, 0].tolist()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("settings", FILTERS, ids=str)
def test_filters_leave_the_tokens_that_transformers_leaves(settings: dict[str, float], kernel: str) -> None:
    logits = random_logits(1)
    support = expected_support(logits, settings)
    drawn = set(draw(kernel, logits, settings, 200 if kernel == "reference" else 2000))
    assert drawn <= set(support)
    if len(support) < 12 and kernel != "reference":
        assert drawn == set(support)
    # The ends of the interval of random numbers are the most and the least likely of the kept tokens.
    if settings and len(support) < VOCABULARY:
        ends = run(kernel, logits.expand(2, -1), controls([0.0, 1.0 - 1e-12], settings))
        order = sorted(support, key=lambda token: -float(logits[0, token]))
        assert ends == [order[0], order[-1]]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("settings", [{}, {"top_k": 6}, {"top_p": 0.8}, {"min_p": 0.1, "temperature": 1.5}], ids=str)
def test_frequencies_follow_the_exact_distribution(settings: dict[str, float], kernel: str) -> None:
    logits = random_logits(4, size=12)
    support = expected_support(logits, settings)
    probabilities = (logits[0, support].double() / settings.get("temperature", 1.0)).softmax(-1).numpy()
    count = 3_000
    drawn = Counter(draw(kernel, logits, settings, count, seed=5))
    observed = np.array([drawn[token] for token in support])
    assert observed.sum() == count
    chi_square = float((((observed - count * probabilities) ** 2) / (count * probabilities)).sum())
    degrees = len(support) - 1
    assert chi_square < degrees + 4 * math.sqrt(2 * degrees) + 6  # about four standard deviations


@pytest.mark.parametrize("kernel", [kernel for kernel in KERNELS if kernel != "reference"])
@pytest.mark.parametrize("settings", FILTERS, ids=str)
def test_kernels_agree_with_plain_torch(settings: dict[str, float], kernel: str) -> None:
    logits = random_logits(6, rows=64)
    uniforms = np.random.default_rng(1).random(64).tolist()
    rows = controls(uniforms, settings)
    expected = run("reference", logits, rows)
    actual = run(kernel, logits, rows)
    # A number that falls on the border of two tokens may round either way; one in ten thousand does.
    assert sum(a != b for a, b in zip(actual, expected, strict=True)) <= 1


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_flat_distribution_is_filtered_over_the_whole_vocabulary(kernel: str) -> None:
    logits = random_logits(2, scale=0.01)
    order = {token: rank for rank, token in enumerate(logits[0].argsort(descending=True).tolist())}
    ranks = [order[token] for token in draw(kernel, logits, {"top_p": 0.95}, 300)]
    assert 0.8 * VOCABULARY < max(ranks) < 0.96 * VOCABULARY


@pytest.mark.parametrize("kernel", KERNELS)
def test_greedy_takes_the_first_of_the_largest(kernel: str) -> None:
    logits = random_logits(3, rows=3)
    logits[0, [4000, 70, 2000]] = 50.0
    logits[1] = -math.inf
    logits[1, VOCABULARY - 1] = -3.0
    tokens = run(kernel, logits, controls([0.5] * 3, {"temperature": 0.0}))
    assert tokens == [70, VOCABULARY - 1, int(logits[2].argmax())]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {}, {"top_p": 0.9}], ids=str)
def test_rows_without_a_finite_largest_logit_have_no_token_and_disturb_nobody(
    settings: dict[str, float], kernel: str
) -> None:
    logits = random_logits(8, rows=4)
    alone = run(kernel, logits[3:], controls([0.3], settings))
    logits[0] = -math.inf
    logits[1, 17] = math.nan
    logits[2, 5] = math.inf
    rows = controls([0.3] * 4, settings)
    if kernel == "reference":
        tokens, largest = reference_sample(logits, rows)
    else:
        with limited_to(kernel):
            tokens, largest = sample(logits, rows)
    assert tokens.tolist() == [0, 0, 0, alone[0]]
    assert largest[0] == -math.inf
    assert math.isnan(largest[1])
    assert largest[2] == math.inf
    assert largest[3] == logits[3].max()


@pytest.mark.parametrize("kernel", KERNELS)
def test_tokens_that_are_ruled_out_are_never_drawn(kernel: str) -> None:
    logits = random_logits(9)
    logits[0, :-3] = -math.inf
    assert set(draw(kernel, logits, {}, 100)) == {VOCABULARY - 3, VOCABULARY - 2, VOCABULARY - 1}
    ends = run(kernel, logits.expand(2, -1), controls([0.0, 1.0 - 1e-16], {}))
    assert ends == [VOCABULARY - 3, VOCABULARY - 1]


@pytest.mark.parametrize("kernel", [kernel for kernel in KERNELS if kernel != "reference"])
def test_a_row_is_the_same_in_any_batch_with_any_number_of_threads(kernel: str) -> None:
    logits = random_logits(10, rows=65)
    wide = torch.full((65, VOCABULARY + 9), 99.0)  # strided rows, and what lies between them must not matter
    wide[:, :VOCABULARY] = logits
    uniforms = np.random.default_rng(2).random(65).tolist()
    rows = torch.cat([controls([u], FILTERS[index % len(FILTERS)]) for index, u in enumerate(uniforms)])
    alone = [run(kernel, logits[index : index + 1], rows[index : index + 1])[0] for index in range(65)]
    for threads in (1, 2):
        torch.set_num_threads(threads)
        assert run(kernel, logits, rows) == alone
        assert run(kernel, wide[:, :VOCABULARY], rows) == alone
