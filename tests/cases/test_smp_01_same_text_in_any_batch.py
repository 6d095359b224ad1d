"""Greedy text and logprobs are the same, bit by bit, alone and in any company.

Reported: the same request at temperature 0 gives other texts under load, because products of another batch size add
up in another order (vllm#5898, vllm#23138, vllm#7779).
"""

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from live import complete

from canary import Canary

pytestmark = pytest.mark.e2e

NUM_PROMPTS = 32
WORDS = ["sea", "prime", "bread", "lamp", "house", "winter", "函数", "étoile", "seven", "::", "def", "road", "\n"]


def prompts() -> list[str]:
    rng = random.Random(1)
    return [" ".join(rng.choices(WORDS, k=rng.randrange(1, 20))) for _ in range(NUM_PROMPTS)]


def answer(canary: Canary, prompt: str) -> tuple[str, list[float]]:
    choice = complete(canary, prompt=prompt, temperature=0, max_tokens=4, logprobs=2)["choices"][0]
    return choice["text"], choice["logprobs"]["token_logprobs"]


def test_smp_01_alone_all_at_once_and_among_others(canary: Canary):
    texts = prompts()
    expected = [answer(canary, text) for text in texts]
    rng = random.Random(2)

    def noise(_: int) -> dict[str, Any]:
        prompt = [rng.randrange(100, 40000) for _ in range(rng.randrange(1, 30))]
        return complete(canary, prompt=prompt, temperature=1.0, max_tokens=6)

    with ThreadPoolExecutor(NUM_PROMPTS) as pool:
        assert list(pool.map(lambda text: answer(canary, text), texts)) == expected
        for start in range(0, NUM_PROMPTS, 16):  # half of them among as many that are new each time
            others = [pool.submit(noise, index) for index in range(16)]
            some = slice(start, start + 16)
            assert list(pool.map(lambda text: answer(canary, text), texts[some])) == expected[some]
            assert all(other.result()["choices"] for other in others)
