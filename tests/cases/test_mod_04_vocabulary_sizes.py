"""Model and tokenizer may count different vocabularies: no request can reach past either, and every answer is whole.

Reported: index errors in the embedding for added tokens without weights, requests that fail on sampled ids
that no token has (vllm#340, vllm#16529, vllm#22471, NVIDIA-NeMo/RL#237).
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import transformers

from pelton.config import EngineConfig
from pelton.engine.client import AsyncEngine
from pelton.http.app import create_app
from tiny_model import SIZES, InProcessHost, save_tiny_model

NUM_TOKENS = 266  # of the tokenizer
URL = "/v1/completions"


def serve(folder: Path, vocab_size: int, use: Callable[[httpx.AsyncClient], Awaitable[None]]) -> None:
    save_tiny_model(folder, transformers.LlamaConfig(**SIZES | {"vocab_size": vocab_size, "eos_token_id": 2}))

    async def main() -> None:
        config = EngineConfig(model=str(folder), kv_cache_memory=4 * 2**20, num_threads=1)
        engine = await AsyncEngine.start(config, InProcessHost())
        try:
            transport = httpx.ASGITransport(app=create_app(engine))
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                await use(client)
        finally:
            await engine.stop()

    asyncio.run(main())


@pytest.mark.parametrize("vocab_size", [288, 250], ids=["a padded model", "tokens without weights"])
def test_mod_04_ids_that_one_of_the_two_lacks_are_refused(tmp_path: Path, vocab_size: int):
    async def use(client: httpx.AsyncClient) -> None:
        last = min(vocab_size, NUM_TOKENS) - 1
        fine: dict[str, Any] = {"prompt": [1, last], "max_tokens": 1}
        assert (await client.post(URL, json=fine)).status_code == 200
        for fields in ({"prompt": [1, last + 1]}, {"logit_bias": {str(last + 1): 1}}, {"stop_token_ids": [last + 1]}):
            response = await client.post(URL, json={**fine, **fields})
            assert response.status_code == 400, response.text
            assert str(last + 1) in response.json()["error"]["message"]
        assert (await client.post(URL, json=fine)).status_code == 200

    serve(tmp_path, vocab_size, use)


def test_mod_04_text_whose_tokens_have_no_weights_is_refused(tmp_path: Path):
    async def use(client: httpx.AsyncClient) -> None:
        response = await client.post(URL, json={"prompt": "a<|im_end|>", "max_tokens": 1})
        assert response.status_code == 400
        assert (await client.post(URL, json={"prompt": "a", "max_tokens": 1})).status_code == 200

    serve(tmp_path, 250, use)


def test_mod_04_a_sampled_id_without_a_token_is_no_text_and_harms_nothing(tmp_path: Path):
    """The model's padding has no weights to speak of; where one of its ids comes all the same, it counts."""

    async def use(client: httpx.AsyncClient) -> None:
        body = {"prompt": "abc", "max_tokens": 300, "temperature": 2.0, "ignore_eos": True, "return_token_ids": True}
        answer = (await client.post(URL, json={**body, "seed": 3, "logprobs": 5})).json()
        choice = answer["choices"][0]
        assert len(choice["token_ids"]) == answer["usage"]["completion_tokens"] == 300
        assert max(choice["token_ids"]) >= NUM_TOKENS, "the seed was to give such an id"
        assert "".join(choice["logprobs"]["tokens"])
        assert choice["finish_reason"] == "length"

    serve(tmp_path, 288, use)
