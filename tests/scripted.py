"""An engine that emits given token ids: the real scheduler, process loop and client, over a script."""

import socket
import threading
from collections.abc import Callable, Sequence

from pelton.config import EngineConfig, resolve
from pelton.engine.client import AsyncEngine
from pelton.engine.engine import Engine
from pelton.engine.messages import Start
from pelton.engine.process import run
from pelton.model_config import ModelInfo
from pelton.sched.pages import PagePool
from pelton.sched.scheduler import Scheduler
from pelton.structured.masks import TokenMasks
from pelton.tokenizer import Tokenizer
from pelton.types import Plan, Sampled, TokenLogprobs

Script = Callable[[Sequence[int]], Sequence[int]]  # prompt ids -> output ids; repeats its last one at the end


class ScriptedRunner:
    """Emits the script's ids whatever the model would say. `before_step` may sleep or raise."""

    def __init__(self, script: Script, before_step: Callable[[Plan], None] | None = None) -> None:
        self._script = script
        self._before_step = before_step
        self._outputs: dict[int, Sequence[int]] = {}
        self._num_prompt: dict[int, int] = {}
        self._logprobs: dict[int, int | None] = {}
        self._plan = Plan(())

    def forward(self, plan: Plan) -> None:
        for new in plan.new:
            self._outputs[new.request_id] = self._script(new.prompt_ids)
            self._num_prompt[new.request_id] = len(new.prompt_ids)
            self._logprobs[new.request_id] = new.params.logprobs
        self._plan = plan
        if self._before_step is not None:
            self._before_step(plan)

    def sample(self, masks: TokenMasks | None = None) -> list[Sampled | None]:
        return [
            self._next(row.request_id, row.start + row.num_tokens) if row.sample else None for row in self._plan.rows
        ]

    def _next(self, request_id: int, position: int) -> Sampled:
        output = self._outputs[request_id]
        token = output[min(position - self._num_prompt[request_id], len(output) - 1)]
        count = self._logprobs[request_id]
        if count is None:
            return Sampled(token)
        top = tuple((token + offset if offset else token, -0.5 - offset) for offset in range(count))
        return Sampled(token, TokenLogprobs(token, -0.5, 1, top))


class ThreadHost:
    """Runs the engine's process loop in a thread of this process, over a real socket pair."""

    def __init__(self, make_runner: Callable[[], ScriptedRunner], eos_token_ids: Sequence[int], num_pages: int) -> None:
        self._make_runner = make_runner
        self._eos_token_ids = eos_token_ids
        self._num_pages = num_pages
        self._thread: threading.Thread | None = None
        self.engine: Engine | None = None
        self.may_build = threading.Event()  # cleared, a new engine stays in its start
        self.may_build.set()
        self.engine_socket: socket.socket | None = None

    def start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        self.engine_socket = theirs
        self._thread = threading.Thread(target=self._run, args=(theirs,), daemon=True)
        self._thread.start()
        return ours

    def stop(self, *, at_once: bool = False) -> None:
        if self._thread is not None:
            self._thread.join(5)
            assert not self._thread.is_alive(), "the engine loop did not end when its socket closed"

    def _run(self, connection: socket.socket) -> None:
        with connection:
            run(connection, self._build)

    def _build(self, start: Start) -> Engine:
        self.may_build.wait()
        scheduler = Scheduler(
            PagePool(self._num_pages, start.config.page_size),
            max_batch_tokens=start.config.max_num_batched_tokens or 512,
            max_running=start.config.max_num_seqs,
            max_model_len=start.config.max_model_len or 1024,
            eos_token_ids=self._eos_token_ids,
        )
        self.engine = Engine(scheduler, self._make_runner())
        return self.engine


async def scripted_engine(
    tokenizer: Tokenizer,
    info: ModelInfo,
    script: Script,
    *,
    before_step: Callable[[Plan], None] | None = None,
    num_pages: int = 512,
    **settings: object,
) -> tuple[AsyncEngine, ThreadHost]:
    """A connected AsyncEngine over a scripted one. Stop it with `await engine.stop()`."""
    config = resolve(EngineConfig.from_mapping({"max_model_len": 1024, **settings}), info)
    host = ThreadHost(lambda: ScriptedRunner(script, before_step), info.eos_token_ids, num_pages)
    engine = AsyncEngine(config, info, tokenizer, host, Start(config, info, "scripted"))
    await engine.connect(host.start())
    return engine, host
