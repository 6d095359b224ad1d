"""AsyncEngine over the real process loop with a scripted runner: streams, stops, aborts, deaths."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from pelton.engine.client import AsyncEngine
from pelton.errors import EngineDeadError, RequestError
from pelton.model_config import ModelInfo
from pelton.tokenizer import Tokenizer
from pelton.types import Delta, Plan, SamplingParams
from pelton.weights.hub import locate
from pelton.weights.model_files import ModelFiles

from scripted import ThreadHost, scripted_engine

TIMEOUT = 20.0


@pytest.fixture(scope="module")
def files() -> ModelFiles:
    return ModelFiles(Path(locate(None)))


@pytest.fixture(scope="module")
def tokenizer(files: ModelFiles) -> Tokenizer:
    return files.tokenizer()


@pytest.fixture(scope="module")
def info(files: ModelFiles) -> ModelInfo:
    return files.info()


Use = Callable[[AsyncEngine, ThreadHost], Awaitable[None]]


def use_engine(tokenizer: Tokenizer, info: ModelInfo, text: str, use: Use, **settings: object) -> None:
    """Run `use` against an engine whose every answer is `text` and then end-of-sequence."""
    ids = [*tokenizer.encode(text, add_special_tokens=False), info.eos_token_ids[0]]

    async def main() -> None:
        engine, host = await scripted_engine(tokenizer, info, lambda _prompt: ids, **settings)  # type: ignore[arg-type]
        try:
            await asyncio.wait_for(use(engine, host), TIMEOUT)
        finally:
            await engine.stop()

    asyncio.run(main())


async def collect(engine: AsyncEngine, prompt: Sequence[int] = (5, 6, 7), **params: object) -> list[Delta]:
    return [delta async for delta in engine.generate(prompt, SamplingParams(**{"max_tokens": 64, **params}))]  # type: ignore[arg-type]


def joined(deltas: Sequence[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def unhurried(plan: Plan) -> None:
    """A step of a millisecond, so that a stream of a thousand tokens is still there when the test looks."""
    time.sleep(0.001)


def test_text_arrives_in_pieces_and_ends_with_the_reason(tokenizer: Tokenizer, info: ModelInfo) -> None:
    async def use(engine: AsyncEngine, host: ThreadHost) -> None:
        deltas = await collect(engine)
        assert joined(deltas) == "Hello 🫠 world, é!"
        assert len(deltas) > 4
        assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
        assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", None)
        cut = await collect(engine, max_tokens=2)
        assert cut[-1].finish_reason == "length"
        assert sum(len(delta.token_ids) for delta in cut) == 2

    use_engine(tokenizer, info, "Hello 🫠 world, é!", use)


def test_a_stop_string_ends_the_request_on_both_sides(tokenizer: Tokenizer, info: ModelInfo) -> None:
    async def use(engine: AsyncEngine, host: ThreadHost) -> None:
        deltas = await collect(engine, stop=("wor",))
        assert joined(deltas) == "Hello "
        assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", "wor")
        await until(lambda: host.engine is not None and not host.engine.has_work)

    use_engine(tokenizer, info, "Hello world and much more text that nobody asked for", use)


def test_a_stop_token_gives_no_text_and_is_counted(tokenizer: Tokenizer, info: ModelInfo) -> None:
    world = tokenizer.encode(" world", add_special_tokens=False)
    assert len(world) == 1

    async def use(engine: AsyncEngine, host: ThreadHost) -> None:
        deltas = await collect(engine, stop_token_ids=tuple(world))
        assert joined(deltas) == "Hello"
        assert deltas[-1].stop_reason == world[0]
        assert deltas[-1].token_ids == tuple(world)

    use_engine(tokenizer, info, "Hello world again", use)


def test_closing_the_iterator_frees_every_page(tokenizer: Tokenizer, info: ModelInfo) -> None:
    async def use(engine: AsyncEngine, host: ThreadHost) -> None:
        async def hang_up_after(count: int) -> None:
            stream = engine.generate([5] * 40, SamplingParams(max_tokens=None, ignore_eos=True))
            for _ in range(count):
                await anext(stream)
            await stream.aclose()  # type: ignore[attr-defined]

        await asyncio.gather(*(hang_up_after(count) for count in range(1, 20)))
        await until(lambda: engine.stats.num_running + engine.stats.num_waiting == 0)
        assert engine.stats.num_used_pages == 0
        assert engine.stats.num_aborted == 19
        assert joined(await collect(engine)) == "fine"

    use_engine(tokenizer, info, "fine", use, before_step=unhurried)


def test_a_cancelled_task_aborts_its_request(tokenizer: Tokenizer, info: ModelInfo) -> None:
    async def use(engine: AsyncEngine, host: ThreadHost) -> None:
        task = asyncio.create_task(collect(engine, max_tokens=None, ignore_eos=True))
        await until(lambda: engine.stats.num_running == 1)
        task.cancel()
        await until(lambda: engine.stats.num_running == 0)

    use_engine(tokenizer, info, "on and on", use, before_step=unhurried)


def test_abort_all_ends_streams_with_abort(tokenizer: Tokenizer, info: ModelInfo) -> None:
    async def use(engine: AsyncEngine, host: ThreadHost) -> None:
        task = asyncio.create_task(collect(engine, max_tokens=None, ignore_eos=True))
        await until(lambda: engine.stats.num_running == 1)
        await engine.abort_all()
        assert (await task)[-1].finish_reason == "abort"

    use_engine(tokenizer, info, "on and on", use, before_step=unhurried)


def test_a_dead_engine_ends_its_requests_and_a_new_one_serves_the_next(tokenizer: Tokenizer, info: ModelInfo) -> None:
    async def use(engine: AsyncEngine, host: ThreadHost) -> None:
        task = asyncio.create_task(collect(engine, max_tokens=None, ignore_eos=True))
        await until(lambda: engine.stats.num_running == 1)
        assert host.engine_socket is not None
        host.engine_socket.shutdown(2)
        with pytest.raises(EngineDeadError, match="died"):
            await task
        await until(lambda: engine.health == "ok")
        assert engine.num_restarts == 1
        assert joined(await collect(engine)) == "on and on"

    use_engine(tokenizer, info, "on and on", use, before_step=unhurried)


def test_requests_are_refused_at_once_while_a_new_engine_starts(tokenizer: Tokenizer, info: ModelInfo) -> None:
    async def use(engine: AsyncEngine, host: ThreadHost) -> None:
        host.may_build.clear()
        assert host.engine_socket is not None
        host.engine_socket.shutdown(2)
        await until(lambda: engine.health == "dead")
        for _ in range(20):
            with pytest.raises(EngineDeadError):
                await collect(engine)
            await asyncio.sleep(0.01)
        host.may_build.set()
        await until(lambda: engine.health == "ok")
        assert joined(await collect(engine)) == "back"

    use_engine(tokenizer, info, "back", use)


def test_an_engine_with_work_and_no_step_is_stuck(tokenizer: Tokenizer, info: ModelInfo) -> None:
    def slow_step(plan: Plan) -> None:
        time.sleep(1.6)

    async def use(engine: AsyncEngine, host: ThreadHost) -> None:
        assert engine.health == "ok"
        task = asyncio.create_task(collect(engine, max_tokens=1))
        await until(lambda: engine.health == "stuck")
        await task
        assert engine.health == "ok"

    use_engine(tokenizer, info, "slow", use, before_step=slow_step, stuck_after=1)


def test_a_step_that_raises_fails_its_own_requests_only(tokenizer: Tokenizer, info: ModelInfo) -> None:
    def refuse_long_prompts(plan: Plan) -> None:
        if any(row.num_tokens == 100 for row in plan.rows):
            raise RuntimeError("planted")

    async def use(engine: AsyncEngine, host: ThreadHost) -> None:
        with pytest.raises(RequestError, match="failed") as caught:
            await collect(engine, prompt=[5] * 100)
        assert caught.value.status == 500
        assert "planted" not in caught.value.message
        assert joined(await collect(engine)) == "alive"
        assert engine.stats.num_used_pages == 0

    use_engine(tokenizer, info, "alive", use, before_step=refuse_long_prompts)


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], {}, "the prompt is empty"),
        ([5] * 1024, {}, "maximum context length is 1024 tokens"),
        ([5, 49152], {}, r"token ids \[49152\] are out of vocabulary, which has 49152 tokens"),
        ([5, -1], {}, r"\[-1\]"),
        ([5], {"logit_bias": {60000: 1.0}}, r"logit_bias: token ids \[60000\]"),
        ([5], {"stop_token_ids": (99999,)}, "stop_token_ids"),
    ],
)
def test_what_cannot_run_is_refused_before_it_reaches_the_engine(
    prompt: list[int], params: dict[str, object], message: str, tokenizer: Tokenizer, info: ModelInfo
) -> None:
    async def use(engine: AsyncEngine, host: ThreadHost) -> None:
        with pytest.raises(RequestError, match=message):
            await collect(engine, prompt=prompt, **params)
        assert engine.stats.num_steps == 0

    use_engine(tokenizer, info, "never", use)


def test_sixty_four_streams_at_once_do_not_mix(tokenizer: Tokenizer, info: ModelInfo) -> None:
    async def main() -> None:
        engine, _ = await scripted_engine(tokenizer, info, lambda prompt: [*(prompt * 3), info.eos_token_ids[0]])
        try:
            prompts = [tokenizer.encode(f"request number {index} says") for index in range(64)]
            answers = await asyncio.gather(*(collect(engine, prompt=prompt) for prompt in prompts))
            for index, deltas in enumerate(answers):
                assert joined(deltas) == f"request number {index} says" * 3
        finally:
            await engine.stop()

    asyncio.run(main())
