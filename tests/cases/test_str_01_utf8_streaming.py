"""Characters that no token holds whole arrive whole in a stream, and equal to the unstreamed answer.

Servers that decode token by token send U+FFFD for the first bytes of an emoji, or drop them
(Blaizzy/mlx-vlm#1076, exo-explore/exo#1691, vllm#6626). The rule for an answer that max_tokens cuts inside a
character: the bytes that begin it become one U+FFFD, streamed or not.
"""

import json
from typing import Any

import pytest

from fakes import Client, FakeEngine

TEXT = "ok 🫠 龜 é 👩‍👩‍👧 end"
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPTS: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "hi"},
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
}
NUM_TOKENS = len(FakeEngine().ids(TEXT))


def client_of(num_tokens_per_delta: int) -> Client:
    engine = FakeEngine(num_tokens_per_delta=num_tokens_per_delta)
    engine.script = engine.ids(TEXT)
    return Client.of(engine)


def whole_text(client: Client, url: str, body: dict[str, Any]) -> tuple[str, str]:
    choice = client.post(url, body).json()["choices"][0]
    return choice["text"] if url == COMPLETIONS else choice["message"]["content"], choice["finish_reason"]


def streamed_text(client: Client, url: str, body: dict[str, Any]) -> tuple[list[str], str]:
    """The pieces, out of bytes of which every data line must be UTF-8 and JSON by itself."""
    raw = client.post(url, {**body, "stream": True}).content
    lines = [line for line in raw.split(b"\n") if line]
    assert lines.pop() == b"data: [DONE]"
    choices = [json.loads(line.removeprefix(b"data: ").decode("utf-8"))["choices"][0] for line in lines]
    pieces = [choice["text"] if url == COMPLETIONS else choice["delta"].get("content", "") for choice in choices]
    return pieces, choices[-1]["finish_reason"]


def test_str_01_no_character_of_the_text_is_one_token():
    engine = FakeEngine()
    assert all(len(engine.ids(char)) > 1 for char in TEXT if ord(char) > 127)


@pytest.mark.parametrize("url", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_str_01_deltas_join_to_the_whole_text(url: str, size: int):
    body = {**PROMPTS[url], "max_tokens": NUM_TOKENS + 1}
    pieces, reason = streamed_text(client_of(size), url, body)
    assert ("".join(pieces), reason) == (TEXT, "stop") == whole_text(client_of(size), url, body)
    assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("url", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("max_tokens", range(1, NUM_TOKENS + 1))
def test_str_01_a_cut_inside_a_character_is_one_replacement_character(url: str, max_tokens: int):
    engine = FakeEngine()
    body = {**PROMPTS[url], "max_tokens": max_tokens}
    pieces, reason = streamed_text(client_of(1), url, body)
    text = "".join(pieces)
    assert (text, reason) == whole_text(client_of(1), url, body)
    assert reason == "length"
    data = b"".join(engine.tokenizer.token_bytes(token) for token in engine.ids(TEXT)[:max_tokens])
    complete = data.decode("utf-8", "ignore")
    dangling = len(data) > len(complete.encode())
    assert text == complete + ("\ufffd" if dangling else "")
    assert not any("\ufffd" in piece for piece in pieces[:-2])  # chat ends with an empty delta
