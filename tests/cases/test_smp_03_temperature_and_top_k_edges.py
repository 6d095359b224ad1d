"""Temperatures too small to sample with are greedy, and every top_k that filters nothing is the same.

Reported: blanks, runs of BOS and NaN at temperatures like 1e-6, an error for a top_k as large as the vocabulary, and
top_k 0 that is not "off" (vllm#3063, vllm#2937, TensorRT-LLM#15715, vllm#17553).
"""

import pytest

from canary import Canary

pytestmark = pytest.mark.e2e

PROMPT = "1 2 3 4 5 6 7 8 9 10 11 12 13 1"  # each next token is clear
OPEN = "My favourite thing about the sea is"
VOCABULARY = 49_152


def text(canary: Canary, **fields: object) -> str:
    response = canary.client.post("/v1/completions", json={"max_tokens": 12, **fields})
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["text"]


def test_smp_03_tiny_temperatures_give_the_greedy_text(canary: Canary):
    greedy = text(canary, prompt=PROMPT, temperature=0)
    for temperature in (1e-12, 1e-6, 1e-5, 1e-4, 1e-3, 5e-324):
        assert text(canary, prompt=PROMPT, temperature=temperature, seed=1) == greedy
    canary.check()


def test_smp_03_a_top_k_that_filters_nothing_is_off(canary: Canary):
    fields = {"prompt": OPEN, "temperature": 1, "seed": 42}
    off = text(canary, **fields)
    for top_k in (None, -1, 0, VOCABULARY, VOCABULARY + 1, 2**31 - 1):
        assert text(canary, **fields, top_k=top_k) == off
    assert text(canary, **fields, top_k=1) == text(canary, prompt=OPEN, temperature=0) != off
    canary.check()
