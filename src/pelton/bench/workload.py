"""What a load generator sends and when: random or given prompts, Poisson arrivals."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

TokenCounter = Callable[[str], Awaitable[int]]

_MAX_FITTING_ROUNDS = 16

# Frequent English words: with a space before it, each is one token of nearly every vocabulary.
_FREQUENT_WORDS = """
the of and to in that is was for it with as his on be at by had not are but from or have an they which one you were
her all she there would their we him been has when who will more no if out so said what up its about into than them
can only other new some could time these two may then do first any my now such like our over man me even most made
after also did many before must through back years where much your way well down should because each just those
people how too little state good very make world still own see men work long get here between both life being under
never day same another know while last might us great old year off come since against go came right used take three
states himself few house use during without again place around however home small found thought went say part once
general high upon school every does got united left number course war until always away something fact though water
less public put think almost hand enough far took head yet government system better set told nothing night end why
called eyes find going look asked later knew point next city
"""
WORDS: tuple[str, ...] = tuple(_FREQUENT_WORDS.split())


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request of the workload; `max_tokens` bounds its answer."""

    text: str
    max_tokens: int


async def random_prompts(
    num_prompts: int, input_len: int, output_len: int, seed: int, count_tokens: TokenCounter | None = None
) -> list[Prompt]:
    """Prompts of random words, no two with a common beginning worth caching.

    With `count_tokens` each has exactly `input_len` tokens, as far as the vocabulary allows it; without, `input_len`
    words.
    """
    rng = random.Random(seed)
    prompts: list[Prompt] = []
    for _ in range(num_prompts):
        words: list[str] = rng.choices(WORDS, k=input_len)
        if count_tokens is not None:
            words = await _fit(words, input_len, rng, count_tokens)
        prompts.append(Prompt(" ".join(words), output_len))
    return prompts


async def _fit(words: list[str], length: int, rng: random.Random, count_tokens: TokenCounter) -> list[str]:
    """Drop or add words at the end until there are `length` tokens; one word always stays."""
    for _ in range(_MAX_FITTING_ROUNDS):
        surplus = await count_tokens(" ".join(words)) - length
        if surplus == 0:
            break
        words = words[: max(len(words) - surplus, 1)] if surplus > 0 else words + rng.choices(WORDS, k=-surplus)
    return words


class PromptLine(msgspec.Struct):
    """One line of a JSONL file of prompts."""

    prompt: str
    max_tokens: int | None = None


def read_prompts(path: Path, output_len: int) -> list[Prompt]:
    """Prompts of a text file, one a line, or of a .jsonl file of {"prompt": ..., "max_tokens": ...}.

    Raises:
        ValueError: the file holds none, or a line of it is not as it should be.
    """
    lines = [line for line in path.read_text().splitlines() if line.strip()]
    if not lines:
        raise ValueError(f"{path} holds no prompts")
    if path.suffix != ".jsonl":
        return [Prompt(line, output_len) for line in lines]
    try:
        parsed = [msgspec.json.decode(line, type=PromptLine) for line in lines]
    except msgspec.DecodeError as error:
        raise ValueError(f'{path}: each line must be {{"prompt": "..."}}: {error}') from None
    return [Prompt(line.prompt, line.max_tokens or output_len) for line in parsed]


def arrival_times(num_requests: int, rate: float, burstiness: float, seed: int) -> list[float]:
    """Seconds from the start at which each request is due, at `rate` requests per second on average.

    Gaps are gamma-distributed with shape `burstiness`: 1 is a Poisson process, below 1 comes in bursts, above 1 is
    more even.
    """
    rng = random.Random(seed)
    times: list[float] = []
    now = 0.0
    for _ in range(num_requests):
        times.append(now)
        now += rng.gammavariate(burstiness, 1.0 / (rate * burstiness))
    return times
