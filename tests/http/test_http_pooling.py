"""Embeddings, scores and rankings over a fake engine whose vectors are known."""

import base64
import math
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from openai import AsyncOpenAI
from openai.types import CreateEmbeddingResponse

from pelton.errors import RequestError

from fakes import Client, FakeEngine, Running, fake_vector, serving

URL = "/v1/embeddings"


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(num_cached_tokens=0)


def vectors(body: dict[str, Any]) -> list[list[float]]:
    return [entry["embedding"] for entry in body["data"]]


def cosine(engine: FakeEngine, left: str, right: str) -> float:
    a, b = fake_vector(engine.ids(left)), fake_vector(engine.ids(right))
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def error(engine: FakeEngine, path: str, body: dict[str, Any], status: int = 400) -> dict[str, Any]:
    response = Client.of(engine).post(path, body)
    assert response.status_code == status, response.text
    assert engine.calls == [] or status != 400
    return response.json()["error"]


def test_an_answer_has_the_shape_that_the_api_names(engine: FakeEngine):
    response = Client.of(engine).post(URL, {"model": "tiny", "input": ["hello", "HI"]}, headers={"x-request-id": "a"})
    body = response.json()
    created = body.pop("created")
    num_tokens = len(engine.ids("hello")) + len(engine.ids("HI"))
    assert body == {
        "id": "embd-a",
        "object": "list",
        "model": "tiny",
        "data": [
            {"object": "embedding", "index": index, "embedding": fake_vector(engine.ids(text)).tolist()}
            for index, text in enumerate(("hello", "HI"))
        ],
        "usage": {
            "prompt_tokens": num_tokens,
            "completion_tokens": 0,
            "total_tokens": num_tokens,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }
    assert CreateEmbeddingResponse.model_validate({**body, "created": created}).data[1].index == 1
    assert {(call.params.pooling, call.params.max_tokens, call.salt) for call in engine.calls} == {("last", 0, ":")}


@pytest.mark.parametrize(
    ("given", "expected"),
    [("hello", [[0]]), (["hello"], [[0]]), ([3, 4, 5], [[3, 4, 5]]), ([[3], [4, 5]], [[3], [4, 5]])],
)
def test_inputs_are_texts_or_ids_or_lists_of_either(engine: FakeEngine, given: object, expected: list[list[int]]):
    if given in ("hello", ["hello"]):
        expected = [engine.ids("hello")]
    body = Client.of(engine).post(URL, {"input": given}).json()
    assert vectors(body) == [fake_vector(ids).tolist() for ids in expected]
    assert body["usage"]["prompt_tokens"] == sum(map(len, expected))


def test_base64_is_float32_in_little_endian_order(engine: FakeEngine):
    body = Client.of(engine).post(URL, {"input": "hello", "encoding_format": "base64"}).json()
    (encoded,) = vectors(body)
    assert base64.b64decode(encoded) == fake_vector(engine.ids("hello")).tobytes()


def test_a_server_may_pool_by_the_mean(engine: FakeEngine):
    engine.config = replace(engine.config, pooling_type="mean")
    Client.of(engine).post(URL, {"input": "hello"})
    assert engine.calls[0].params.pooling == "mean"


def test_a_text_may_fill_the_context_and_be_cut_to_it(engine: FakeEngine):
    client = Client.of(engine)
    assert client.post(URL, {"input": [5] * 2048}).status_code == 200
    assert error(FakeEngine(), URL, {"input": [[3], [5] * 2049]})["param"] == "input[1]"
    assert client.post(URL, {"input": [5] * 2049, "truncate_prompt_tokens": -1}).json()["usage"]["total_tokens"] == 2048
    cut = {"input": [1, 2, 3], "truncate_prompt_tokens": 2}
    for side, ids in (("left", (2, 3)), ("right", (1, 2))):
        client.post(URL, {**cut, "truncation_side": side})
        assert engine.calls[-1].prompt_ids == ids


def test_hopelessly_long_texts_are_refused_by_index(engine: FakeEngine):
    assert error(engine, URL, {"input": ["a", "b" * 2_000_000]})["param"] == "input[1]"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": [[1], []]}, "input[1]"),
        ({"input": ["a", [1]]}, "input"),
        ({"input": [0, 99999]}, "input"),
        ({"input": [[0], [99999]]}, "input[1]"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "a", "dimensions": 4}, "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"input": "a", "cache_salt": ""}, "cache_salt"),
    ],
)
def test_what_cannot_be_embedded_is_refused_by_name(engine: FakeEngine, body: dict[str, Any], param: str):
    assert error(engine, URL, body)["param"] == param


def test_the_models_own_dimensions_may_be_named(engine: FakeEngine):
    assert Client.of(engine).post(URL, {"input": "a", "dimensions": 8}).status_code == 200


def test_one_failed_text_fails_the_request_and_ends_the_others():
    engine = FakeEngine(fail_after=0, error=RequestError("no", status=500))
    assert error(engine, URL, {"input": ["a", "b", "c"]}, 500)["message"] == "no"
    assert engine.num_live == 0


def test_a_server_that_ends_requests_answers_503():
    engine = FakeEngine(aborting=True)
    assert error(engine, URL, {"input": "a"}, 503)["message"] == "The server has ended this request"


def test_prompt_tokens_and_requests_are_counted(engine: FakeEngine):
    client = Client.of(engine)
    usage = client.post(URL, {"input": ["hello", "HI"]}).json()["usage"]
    text = client.get("/metrics").text
    for name, labels, value in (
        ("prompt_tokens", "", usage["prompt_tokens"]),
        ("generation_tokens", "", 0),
        ("request_success", 'finished_reason="stop",', 2),
    ):
        assert f'pelton:{name}_total{{engine="0",{labels}model_name="tiny"}} {float(value)}' in text.splitlines()


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
@pytest.mark.parametrize(
    ("left", "right", "pairs"),
    [
        ("ab", "abc", [("ab", "abc")]),
        ("ab", ["abc", "xyz"], [("ab", "abc"), ("ab", "xyz")]),
        (["ab"], ["ab"], [("ab", "ab")]),
        (["ab", "cd"], ["abc", "xyz"], [("ab", "abc"), ("cd", "xyz")]),
    ],
)
def test_scores_are_the_cosines_of_pairs(
    engine: FakeEngine, path: str, left: object, right: object, pairs: Sequence[tuple[str, str]]
):
    body = Client.of(engine).post(path, {"text_1": left, "text_2": right}).json()
    assert body["object"] == "list" and body["id"].startswith("score-")
    assert [(entry["index"], entry["object"]) for entry in body["data"]] == [(i, "score") for i in range(len(pairs))]
    for entry, (one, other) in zip(body["data"], pairs, strict=True):
        assert entry["score"] == pytest.approx(cosine(engine, one, other), abs=1e-6)
    assert body["usage"]["total_tokens"] == sum(len(call.prompt_ids) for call in engine.calls)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
        ({"text_1": [], "text_2": []}, "text_1"),
        ({"text_1": "a", "text_2": []}, "text_2"),
        ({"text_1": "", "text_2": "b"}, "text_1"),
        ({"text_1": "a", "text_2": ["b", ""]}, "text_2[1]"),
        ({"text_1": "a"}, "text_2"),
    ],
)
def test_what_cannot_be_scored_is_refused_by_name(engine: FakeEngine, body: dict[str, Any], param: str):
    assert error(engine, "/v1/score", body)["param"] == param


DOCUMENTS = ["cde", "abc", {"text": "ab"}]


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
def test_documents_are_ordered_by_relevance(engine: FakeEngine, path: str):
    body = Client.of(engine).post(path, {"query": "ab", "documents": DOCUMENTS}).json()
    assert [(entry["index"], entry["document"]) for entry in body["results"]] == [
        (2, {"text": "ab"}),
        (1, {"text": "abc"}),
        (0, {"text": "cde"}),
    ]
    scores = [entry["relevance_score"] for entry in body["results"]]
    assert scores == pytest.approx([cosine(engine, "ab", text) for text in ("ab", "abc", "cde")], abs=1e-6)
    assert body["model"] == "tiny" and body["id"].startswith("rerank-")


def test_many_documents_are_ranked_the_same_and_cut_to_top_n(engine: FakeEngine):
    documents = [chr(97 + index % 26) * (index // 26 + 1) + "b" for index in range(100)]
    expected = sorted(range(100), key=lambda index: -round(cosine(engine, "ab", documents[index]), 5))[:1]
    body = {"query": "ab", "documents": documents, "top_n": 5, "return_documents": False}
    results = Client.of(engine).post("/rerank", body).json()["results"]
    assert len(results) == 5
    assert results[0]["relevance_score"] == pytest.approx(cosine(engine, "ab", documents[expected[0]]), abs=1e-6)
    assert all(entry.keys() == {"index", "relevance_score"} for entry in results)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"query": "", "documents": ["a"]}, "query"),
        ({"query": "a", "documents": []}, "documents"),
        ({"query": "a", "documents": ["a", {"text": ""}]}, "documents[1]"),
        ({"query": "a", "documents": ["a"], "top_n": -1}, "top_n"),
    ],
)
def test_what_cannot_be_ranked_is_refused_by_name(engine: FakeEngine, body: dict[str, Any], param: str):
    assert error(engine, "/v1/rerank", body)["param"] == param


def test_invocations_find_the_endpoint(engine: FakeEngine):
    client = Client.of(engine)
    assert client.post("/invocations", {"input": "a"}).json()["data"][0]["object"] == "embedding"
    assert client.post("/invocations", {"text_1": "a", "text_2": "b"}).json()["data"][0]["object"] == "score"
    assert client.post("/invocations", {"query": "a", "documents": ["b"]}).json()["results"][0]["index"] == 0


def test_the_client_of_openai_reads_them(engine: FakeEngine):
    async def scenario(running: Running) -> None:
        base_url = f"http://127.0.0.1:{engine.config.port}/v1"
        async with AsyncOpenAI(api_key="x", base_url=base_url, max_retries=0) as client:
            for options in ({}, {"encoding_format": "float"}):  # the client's own default is base64
                answer = await client.embeddings.create(model="tiny", input=["hello", "HI"], **options)
                expected = [fake_vector(engine.ids(text)) for text in ("hello", "HI")]
                assert [array("f", entry.embedding) for entry in answer.data] == expected
                assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0

    assert serving(engine, scenario) == 0
