"""A checkpoint directory whose generation_config.json recommends a way to sample, from the file to the text."""

import asyncio
import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from pelton import LLM
from pelton.cli.answers import LocalModel
from pelton.config import EngineConfig
from pelton.engine.client import AsyncEngine
from pelton.engine.describe import describe
from pelton.http.app import create_app
from pelton.types import SamplingParams
from tiny_model import InProcessHost, save_tiny_model

PROMPT = [72, 101, 108, 108, 111]
NEARLY_GREEDY = {"temperature": 0.001, "max_new_tokens": 12}
SETTINGS: dict[str, Any] = {"dtype": "float32", "kv_cache_memory": 4 * 2**20, "num_threads": 1, "max_model_len": 128}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recommends")
    save_tiny_model(folder)
    return folder


def recommend(folder: Path, values: dict[str, Any]) -> str:
    (folder / "generation_config.json").write_text(json.dumps(values))
    return str(folder)


def output_ids(llm: LLM, params: SamplingParams | None) -> list[int]:
    (result,) = llm.generate([PROMPT], params, use_tqdm=False)
    return result.outputs[0].token_ids


def test_a_prompt_without_parameters_is_sampled_as_the_file_says(folder: Path):
    llm = LLM(recommend(folder, NEARLY_GREEDY), **SETTINGS)
    assert llm.default_params == SamplingParams(temperature=0.001, max_tokens=12)
    greedy = output_ids(llm, SamplingParams(temperature=0.0, max_tokens=12))
    assert output_ids(llm, None) == greedy
    warm = output_ids(llm, SamplingParams(max_tokens=12, seed=3))  # what is given is all that holds
    assert warm != greedy
    assert output_ids(llm, msgspec.structs.replace(llm.default_params, max_tokens=5)) == greedy[:5]


@pytest.mark.parametrize("word", ["none", "vllm"])
def test_the_file_can_be_left_out_of_it(folder: Path, word: str):
    described = describe(EngineConfig(model=recommend(folder, NEARLY_GREEDY), generation_config=word, **SETTINGS))
    assert described.info.sampling_defaults == {}


def test_an_override_comes_on_top_of_either(folder: Path):
    path = recommend(folder, NEARLY_GREEDY)
    config = EngineConfig(model=path, override_generation_config='{"temperature": 0.5}', **SETTINGS)
    assert describe(config).info.sampling_defaults == {"temperature": 0.5, "max_tokens": 12}
    assert describe(dataclasses.replace(config, generation_config="none")).info.sampling_defaults == {
        "temperature": 0.5
    }


def test_they_are_logged_once_and_a_length_beyond_the_context_is_none(folder: Path, caplog: pytest.LogCaptureFixture):
    path = recommend(folder, {"top_p": 0.9, "temperature": 0.6, "max_new_tokens": 4096})
    with caplog.at_level(logging.INFO):
        described = describe(EngineConfig(model=path, **SETTINGS))
    assert described.info.sampling_defaults == {"temperature": 0.6, "top_p": 0.9}
    lines = [record.getMessage() for record in caplog.records if "sampling" in record.getMessage()]
    assert lines == ["sampling defaults of the model: temperature 0.6, top_p 0.9"]


def test_a_model_without_recommendations_logs_none(folder: Path, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO):
        describe(EngineConfig(model=recommend(folder, {"eos_token_id": 265}), **SETTINGS))
    assert "sampling" not in caplog.text


@pytest.mark.parametrize(
    ("recommended", "settings", "expected"),
    [
        ({}, {}, SamplingParams(max_tokens=None, temperature=0.7)),
        (NEARLY_GREEDY, {}, SamplingParams(max_tokens=12, temperature=0.001)),
        (NEARLY_GREEDY, {"temperature": 1.0}, SamplingParams(max_tokens=12, temperature=1.0)),
        (NEARLY_GREEDY, {"max_tokens": None}, SamplingParams(max_tokens=None, temperature=0.001)),
    ],
)
def test_chat_and_run_take_them_unless_flags_say_otherwise(
    folder: Path, recommended: dict[str, Any], settings: dict[str, Any], expected: SamplingParams
):
    described = describe(EngineConfig(model=recommend(folder, recommended), **SETTINGS))
    asked: list[SamplingParams] = []

    class Engine:
        config, info, tokenizer = described.config, described.info, described.tokenizer

        async def generate(self, prompt_ids: list[int], params: SamplingParams) -> Any:
            asked.append(params)
            for _ in ():
                yield

    async def stop() -> None: ...

    model = LocalModel(Engine(), stop)  # pyright: ignore[reportArgumentType]
    asyncio.run(model.complete("hi", settings, lambda _: None))
    assert asked == [expected]


def test_a_server_samples_as_the_file_says_where_a_request_leaves_it_open(folder: Path):
    async def answers(*bodies: dict[str, Any]) -> list[str]:
        config = EngineConfig(model=recommend(folder, NEARLY_GREEDY), **SETTINGS)
        engine = await AsyncEngine.start(config, InProcessHost())
        transport = httpx.ASGITransport(app=create_app(engine))
        try:
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                replies = [await client.post("/v1/completions", json={"prompt": PROMPT, **body}) for body in bodies]
        finally:
            await engine.stop()
        return [reply.json()["choices"][0]["text"] for reply in replies]

    open_one, greedy, warm = asyncio.run(answers({}, {"temperature": 0}, {"temperature": 1, "seed": 3}))
    assert open_one == greedy != warm
