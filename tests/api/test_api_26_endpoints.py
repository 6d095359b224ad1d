"""Every endpoint of the list is there and answers in its own shape; adapters come later."""

import pytest

from canary import Canary
from fakes import Client, FakeEngine

USER = [{"role": "user", "content": "hi"}]


@pytest.fixture
def client() -> Client:
    return Client.of(FakeEngine(script=FakeEngine().ids("hello")))


@pytest.mark.parametrize(("health", "status"), [("ok", 200), ("dead", 503), ("stuck", 503)])
def test_api_26_health_is_empty(health, status: int):
    response = Client.of(FakeEngine(health=health)).get("/health")
    assert (response.status_code, response.content) == (status, b"")


def test_api_26_the_probes_and_the_list_of_models(client: Client):
    assert client.get("/version").json()["version"]
    assert client.get("/load").json() == {"server_load": 0}
    assert client.get("/ping").status_code == client.request("POST", "/ping").status_code == 200
    assert "pelton:num_requests_running" in client.get("/metrics").text
    (card,) = client.get("/v1/models").json()["data"]
    assert (card["id"], card["parent"], card["max_model_len"]) == ("tiny", None, 2048)
    assert card["root"]


def test_api_26_tokenize_and_detokenize_are_inverse(client: Client):
    tokens = client.post("/tokenize", {"prompt": "hello é"}).json()["tokens"]
    assert client.post("/detokenize", {"tokens": tokens}).json() == {"prompt": "hello é"}


def test_api_26_invocations_are_told_apart_by_their_fields(client: Client):
    assert client.post("/invocations", {"messages": USER}).json()["object"] == "chat.completion"
    assert client.post("/invocations", {"prompt": "hi"}).json()["object"] == "text_completion"


def test_api_26_responses(client: Client):
    answer = client.post("/v1/responses", {"input": "hi"}).json()
    assert (answer["object"], answer["status"]) == ("response", "completed")
    assert answer["output"][0]["content"][0]["text"] == "hello"


def test_api_26_messages(client: Client):
    body = {"model": "tiny", "messages": USER, "max_tokens": 10}
    answer = client.post("/v1/messages", body).json()
    assert (answer["type"], answer["role"], answer["content"][0]["text"]) == ("message", "assistant", "hello")
    count = client.post("/v1/messages/count_tokens", {"model": "tiny", "messages": USER}).json()["input_tokens"]
    assert count == answer["usage"]["input_tokens"] > 0


@pytest.mark.e2e
def test_api_26_embeddings_scores_and_ranks(canary: Canary):
    answer = canary.client.post("/v1/embeddings", json={"input": ["the sea", "the sea", "bread"]}).json()
    vectors = [entry["embedding"] for entry in answer["data"]]
    assert [entry["index"] for entry in answer["data"]] == [0, 1, 2]
    assert vectors[0] == vectors[1] != vectors[2]
    scores = canary.client.post("/v1/score", json={"text_1": "the sea", "text_2": ["bread", "the sea"]}).json()["data"]
    assert scores[1]["score"] == pytest.approx(1, abs=1e-3)
    assert scores[0]["score"] < scores[1]["score"]
    ranks = canary.client.post("/v1/rerank", json={"query": "the sea", "documents": ["bread", "the sea"]}).json()
    assert ranks["results"][0]["index"] == 1
    canary.check()
