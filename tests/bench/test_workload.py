"""Prompts and arrivals of a load test."""

import asyncio
import itertools

import numpy as np
import pytest

from pelton.bench.workload import Prompt, arrival_times, random_prompts, read_prompts


async def count_letters_six(text: str) -> int:
    return 1 + sum(2 if len(word) >= 6 else 1 for word in text.split())


def test_random_prompts_have_exactly_the_length_that_the_counter_sees():
    prompts = asyncio.run(random_prompts(30, 64, 5, seed=1, count_tokens=count_letters_six))
    assert [asyncio.run(count_letters_six(prompt.text)) for prompt in prompts] == [64] * 30
    assert {prompt.max_tokens for prompt in prompts} == {5}


def test_a_length_below_the_chat_template_still_gives_a_prompt():
    async def count_with_template(text: str) -> int:
        return 30 + len(text.split())

    [prompt] = asyncio.run(random_prompts(1, 10, 5, seed=1, count_tokens=count_with_template))
    assert len(prompt.text.split()) == 1


def test_without_a_counter_words_are_counted():
    [prompt] = asyncio.run(random_prompts(1, 40, 5, seed=1))
    assert len(prompt.text.split()) == 40


def test_prompts_depend_on_the_seed_alone_and_share_no_beginning():
    first, again, other = (asyncio.run(random_prompts(200, 32, 5, seed=seed)) for seed in (3, 3, 4))
    assert first == again != other
    beginnings = {tuple(prompt.text.split()[:8]) for prompt in first + other}
    assert len(beginnings) == 400


def test_poisson_arrivals_have_the_rate_and_the_spread():
    gaps = np.diff(arrival_times(20001, rate=50.0, burstiness=1.0, seed=0))
    assert np.mean(gaps) == pytest.approx(1 / 50, rel=0.03)
    assert np.std(gaps) == pytest.approx(1 / 50, rel=0.05)  # exponential: deviation equals mean


def test_burstiness_changes_the_spread_and_not_the_rate():
    even, bursty = (np.diff(arrival_times(20001, 50.0, burstiness, seed=0)) for burstiness in (4.0, 0.25))
    assert np.mean(even) == pytest.approx(np.mean(bursty), rel=0.1)
    assert np.std(even) == pytest.approx(1 / 50 / 2, rel=0.05)
    assert np.std(bursty) == pytest.approx(1 / 50 * 2, rel=0.05)


def test_arrivals_start_at_zero_and_ascend():
    times = arrival_times(100, 5.0, 0.5, seed=9)
    assert times[0] == 0.0
    assert all(before <= after for before, after in itertools.pairwise(times))


def test_prompt_files(tmp_path):
    text = tmp_path / "prompts.txt"
    text.write_text("one\n\ntwo words\n")
    assert read_prompts(text, 9) == [Prompt("one", 9), Prompt("two words", 9)]
    lines = tmp_path / "prompts.jsonl"
    lines.write_text('{"prompt": "a\\nb"}\n{"prompt": "c", "max_tokens": 3}\n')
    assert read_prompts(lines, 9) == [Prompt("a\nb", 9), Prompt("c", 3)]


@pytest.mark.parametrize(("name", "content"), [("p.txt", "\n"), ("p.jsonl", '{"text": "a"}'), ("p.jsonl", "a")])
def test_bad_prompt_files_are_refused(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=r"p\."):
        read_prompts(tmp_path / name, 9)
