"""With a seed, n texts differ and come again, whatever else is in the batch."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from live import complete

from canary import Canary

pytestmark = pytest.mark.e2e

BODY = {"prompt": "My favourite animal is", "n": 3, "seed": 42, "temperature": 1.0, "max_tokens": 8}


def texts(canary: Canary, **fields: object) -> list[str]:
    return [choice["text"] for choice in complete(canary, **{**BODY, **fields})["choices"]]


def test_api_07_n_with_seed_is_reproducible(canary: Canary):
    first = texts(canary)
    assert len(set(first)) == 3
    assert texts(canary) == first


def test_api_07_a_seed_does_not_depend_on_the_batch(canary: Canary):
    alone = texts(canary)
    with ThreadPoolExecutor(9) as pool:
        noise = [pool.submit(texts, canary, seed=index, prompt=[30 + index] * 5) for index in range(8)]
        assert pool.submit(texts, canary).result() == alone
        assert all(other.result() for other in noise)


def test_api_07_another_seed_gives_other_texts(canary: Canary):
    assert texts(canary, seed=43) != texts(canary)
