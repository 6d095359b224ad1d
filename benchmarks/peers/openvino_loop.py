"""OpenVINO GenAI without a server: a closed loop over its continuous batching, driven by lines of JSON.

Each line of standard input is {"prompts": [{"text", "max_tokens"}, ...], "clients": N}, each line of output the list
of what became of the prompts, in the form of `pelton.bench.client.Outcome`. Runs in OpenVINO's own environment.

    python openvino_loop.py MODEL.gguf --kv-gib 2 --max-num-seqs 64
"""

import argparse
import itertools
import json
import sys
import time
from dataclasses import dataclass, field

import openvino_genai


@dataclass(eq=False)
class Running:
    """A request in flight. Times are seconds of `time.perf_counter`, the same clock in all processes on Linux."""

    handle: object
    started: float
    prompt_tokens: int
    num_tokens: int = 0
    times: list[float] = field(default_factory=list)

    def take(self, now: float) -> None:
        """Collect the tokens of the last step."""
        while self.handle.can_read():
            outputs = self.handle.read()
            count = sum(len(output.generated_ids) for output in outputs.values())
            if count:
                self.num_tokens += count
                self.times.append(now)

    def outcome(self) -> dict[str, object]:
        return {
            "started": self.started,
            "ended": self.times[-1],
            "ttft": self.times[0] - self.started,
            "gaps": [after - before for before, after in itertools.pairwise(self.times)],
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.num_tokens,
            "num_chunks": len(self.times),
        }


class Loop:
    """One pipeline and the requests that run on it."""

    def __init__(self, model: str, scheduler: openvino_genai.SchedulerConfig) -> None:
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU")
        self._tokenizer = self._pipeline.get_tokenizer()
        self._ids = itertools.count()

    def run(self, prompts: list[dict[str, object]], clients: int) -> list[dict[str, object]]:
        waiting = iter(prompts)
        running = [self._start(prompt) for prompt in itertools.islice(waiting, clients)]
        outcomes: list[dict[str, object]] = []
        while running:
            self._pipeline.step()
            now = time.perf_counter()
            for request in running:
                request.take(now)
            ended = [each for each in running if each.handle.get_status() != openvino_genai.GenerationStatus.RUNNING]
            outcomes += [request.outcome() for request in ended]
            running = [request for request in running if request not in ended]
            running += [self._start(prompt) for prompt in itertools.islice(waiting, len(ended))]
        return outcomes

    def _start(self, prompt: dict[str, object]) -> Running:
        started = time.perf_counter()
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = prompt["max_tokens"], True, False
        ids = self._tokenizer.encode(prompt["text"]).input_ids
        return Running(self._pipeline.add_request(next(self._ids), ids, config), started, ids.shape[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--kv-gib", type=int, default=2)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    args = parser.parse_args()
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size, scheduler.max_num_seqs = args.kv_gib, args.max_num_seqs
    scheduler.enable_prefix_caching = True
    loop = Loop(args.model, scheduler)
    for line in sys.stdin:
        command = json.loads(line)
        print(json.dumps(loop.run(command["prompts"], command["clients"])), flush=True)


if __name__ == "__main__":
    main()
