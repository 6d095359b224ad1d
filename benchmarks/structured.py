"""Cost of structure: throughput of constrained requests against unconstrained ones with as many output tokens.

In process, on one loaded model, in interleaved rounds. A constrained round runs first; the free requests of a round
get the output lengths of the constrained ones. Ratios of wall time, and of processor time, which tells the same on a
machine that does other things as well. Also where the time goes: processor time of filling a mask and of moving past a
token, wall time of a step that waits for masks, and the share of tokens that were forced (no forward pass each).

    OMP_WAIT_POLICY=PASSIVE python benchmarks/structured.py [MODEL] [--kind regex] [--requests 16] [--quantize int8]
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from pelton import SamplingParams
from pelton.config import EngineConfig
from pelton.engine.build import build_engine
from pelton.engine.describe import describe
from pelton.engine.engine import Engine
from pelton.engine.grammars import Grammars, MaskJob
from pelton.structured.matcher import Matcher

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "summary": {"type": "string", "maxLength": 200},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "kind": {"enum": ["person", "animal", "company"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}, "minItems": 2, "maxItems": 4},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string", "maxLength": 40}, "city": {"type": "string", "maxLength": 40}},
            "required": ["street", "city"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "summary", "age", "kind", "tags", "address"],
    "additionalProperties": False,
}
GRAMMARS = {
    "json": "start: %json " + json.dumps({**SCHEMA, "x-guidance": {"whitespace_flexible": False}}),
    "regex": r"start: /([A-Z][a-z]{2,9} ){4,8}(\d{3}-){2}\d{4}( [a-z]{3,12}){10}\./",
}
PROMPT = "Write down everything that is known about number {} on the list, in the form that was agreed upon:\n"


class Clock:
    """Wraps a method: how often it ran, and for how long in all."""

    def __init__(self, owner: type, name: str, clock: Callable[[], float] = time.thread_time) -> None:
        self.seconds, self.calls = 0.0, 0
        inner = getattr(owner, name)

        def timed(*args: object) -> object:
            started = clock()
            try:
                return inner(*args)
            finally:
                self.seconds += clock() - started
                self.calls += 1

        setattr(owner, name, timed)


@dataclass
class Round:
    """Output tokens of each request, and how many of all came along with another one."""

    lengths: list[int]
    num_forced: int = 0
    wall: float = 0.0
    processor: float = 0.0


def run(engine: Engine, prompts: Sequence[list[int]], params: Sequence[SamplingParams]) -> Round:
    result = Round([0] * len(prompts))
    started, processor_started = time.perf_counter(), time.process_time()
    for index, (prompt, each) in enumerate(zip(prompts, params, strict=True)):
        engine.add(index, prompt, each)
    while engine.has_work:
        for output in engine.step():
            assert output.error is None, output.error
            result.lengths[output.request_id] += len(output.token_ids)
            result.num_forced += max(len(output.token_ids) - 1, 0)
    result.wall, result.processor = time.perf_counter() - started, time.process_time() - processor_started
    return result


def print_round(index: int, constrained: Round, free: Round) -> None:
    total = sum(constrained.lengths)
    print(
        f"round {index}: {total} tokens, {total / constrained.wall:.0f} tok/s constrained, {total / free.wall:.0f} "
        f"free, ratio {free.wall / constrained.wall:.3f}, by processor {free.processor / constrained.processor:.3f}, "
        f"forced {constrained.num_forced / total:.1%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--kind", choices=GRAMMARS, default="json")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quantize", default="none", choices=("none", "int8", "int4"))
    args = parser.parse_args()
    model = describe(EngineConfig(model=args.model, quantize=args.quantize, enable_prefix_caching=False))
    engine = build_engine(model.config, model.info, model.path)
    prompts = [model.tokenizer.encode(PROMPT.format(index)) for index in range(args.requests)]
    rounds: list[tuple[Round, Round]] = []
    fill, advance, late = (
        Clock(Matcher, "fill"),
        Clock(Grammars, "_advance"),
        Clock(MaskJob, "result", time.perf_counter),
    )
    for index in range(args.rounds + 1):
        params = [
            SamplingParams(temperature=0.8, seed=1000 * index + request, max_tokens=400, grammar=GRAMMARS[args.kind])
            for request in range(args.requests)
        ]
        constrained = run(engine, prompts, params)
        free_params = [
            SamplingParams(temperature=0.8, seed=each.seed, max_tokens=length, ignore_eos=True)
            for each, length in zip(params, constrained.lengths, strict=True)
        ]
        free = run(engine, prompts, free_params)
        assert free.lengths == constrained.lengths
        if index > 0:  # the first round loads the grammar library and warms up
            rounds.append((constrained, free))
            print_round(index, constrained, free)
    wall = median(free.wall / constrained.wall for constrained, free in rounds)
    processor = median(free.processor / constrained.processor for constrained, free in rounds)
    print(f"{args.kind}, {args.requests} requests: median ratio {wall:.3f}, of processor time {processor:.3f}")
    for name, clock in {"fill a mask": fill, "move past a token": advance, "wait for masks": late}.items():
        print(
            f"  {name}: {1e6 * clock.seconds / clock.calls:.0f} us, {clock.calls} times, {clock.seconds:.3f} s in all"
        )


if __name__ == "__main__":
    main()
