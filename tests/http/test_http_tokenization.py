"""POST /tokenize and /detokenize."""

import pytest

from fakes import Client, FakeEngine

MESSAGES = [{"role": "user", "content": "hello é"}]


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(script=[])


@pytest.fixture
def client(engine: FakeEngine) -> Client:
    return Client.of(engine)


def test_a_prompt_is_tokenized_as_completions_do(engine: FakeEngine, client: Client):
    answer = client.post("/tokenize", {"model": "tiny", "prompt": "hello é"}).json()
    client.post("/v1/completions", {"prompt": "hello é"})
    assert answer["tokens"] == list(engine.calls[-1].prompt_ids)
    assert answer["count"] == len(answer["tokens"])
    assert answer["max_model_len"] == 2048
    assert answer["token_strs"] is None


def test_a_chat_is_tokenized_as_chat_completions_do(engine: FakeEngine, client: Client):
    answer = client.post("/tokenize", {"messages": MESSAGES}).json()
    client.post("/v1/chat/completions", {"messages": MESSAGES})
    assert answer["tokens"] == list(engine.calls[-1].prompt_ids)


def test_token_strings_on_request(client: Client):
    answer = client.post("/tokenize", {"prompt": "hello é", "return_token_strs": True}).json()
    assert answer["token_strs"] == ["hello", " ", "bytes:\\xc3", "bytes:\\xa9"]


@pytest.mark.parametrize("text", ["hello é 🫠", "", "<|im_start|>user\nx<|im_end|>", "a" * 10_000])
def test_detokenize_is_the_inverse(client: Client, text: str):
    tokens = client.post("/tokenize", {"prompt": text}).json()["tokens"]
    assert client.post("/detokenize", {"tokens": tokens}).json() == {"prompt": text}


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": MESSAGES}, 400, "prompt"),
        ("/tokenize", {"prompt": 3}, 400, "prompt"),
        ("/tokenize", {"messages": []}, 400, "messages"),
        ("/tokenize", {"prompt": "a", "model": "other"}, 404, "model"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": [10**6]}, 400, "tokens"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, 400, "tokens[0]"),
    ],
)
def test_refusals_name_the_field(client: Client, path: str, body: dict[str, object], status: int, param: str):
    response = client.post(path, body)
    assert (response.status_code, response.json()["error"]["param"]) == (status, param)
