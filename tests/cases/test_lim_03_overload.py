"""More requests than the queue holds are told so at once, the others all answer, and nothing stays behind.

Reported: requests that time out one by one instead of a 429, a queue without bounds (vllm#18826, vllm#13395,
huggingface/text-generation-inference#439).
"""

import asyncio
import collections
import time
from dataclasses import replace

import httpx

from pelton.http.app import create_app

from fakes import EOS, URL, FakeEngine, until
from scripted import scripted_engine

NUM_RUNNING, NUM_QUEUED = 4, 8


def test_lim_03_the_queue_is_bounded_and_what_is_in_it_answers():
    fake = FakeEngine()
    info = replace(fake.info, eos_token_ids=tuple(fake.ids(EOS)))

    async def main() -> None:
        engine, _ = await scripted_engine(
            fake.tokenizer,
            info,
            lambda prompt: [65],
            before_step=lambda plan: time.sleep(0.005),
            max_num_seqs=NUM_RUNNING,
            max_queue=NUM_QUEUED,
        )
        transport = httpx.ASGITransport(app=create_app(engine))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            body = {"prompt": "x", "max_tokens": 20}
            answers = await asyncio.gather(*(client.post(URL, json=body) for _ in range(40)))
            statuses = collections.Counter(answer.status_code for answer in answers)
            assert statuses == {200: NUM_RUNNING + NUM_QUEUED, 429: 40 - NUM_RUNNING - NUM_QUEUED}
            for answer in answers:
                if answer.status_code == 429:
                    assert int(answer.headers["retry-after"]) >= 1
                    assert answer.json()["error"]["type"] == "RateLimitError"
                else:
                    assert answer.json()["choices"][0]["text"] == fake.tokenizer.decode([65] * 20)
            await until(lambda: engine.stats.num_used_pages == 0)
            assert (await client.post(URL, json=body)).status_code == 200
        await engine.stop()

    asyncio.run(main())
