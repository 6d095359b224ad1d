"""The bytes of a chat's logprobs join to its content, also where a token is a part of a character.

Servers give empty or replaced bytes for such tokens, entries for tokens that are not in the text, or a null where a
number should be (vllm#9463, xorbitsai/inference#5252).
"""

from typing import Any

import pytest

from fakes import BOS, EOS, Client, FakeEngine

URL = "/v1/chat/completions"
TEXT = "🧎 ok"


def answered(script: list[int], *, stream: bool, **fields: object) -> tuple[str, list[dict[str, Any]]]:
    """The content and the entries of the logprobs."""
    body = {"messages": [{"role": "user", "content": "hi"}], "logprobs": True, "top_logprobs": 3, **fields}
    client = Client.of(FakeEngine(script=script))
    if not stream:
        choice = client.post(URL, body).json()["choices"][0]
        return choice["message"]["content"], choice["logprobs"]["content"]
    choices = [event["choices"][0] for event in client.events(URL, body)]
    entries = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    return "".join(choice["delta"].get("content", "") for choice in choices), entries


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("skip", [True, False])
def test_log_01_the_bytes_of_the_entries_join_to_the_content(stream: bool, skip: bool):
    script = FakeEngine().ids(TEXT)
    content, entries = answered(script, stream=stream, skip_special_tokens=skip)
    assert content == TEXT
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == TEXT
    assert len(entries) == len(script)  # one a visible token, and none for the end of the sequence
    assert all(entry["bytes"] for entry in entries)
    assert [bytes(entry["bytes"]) for entry in entries[:4]] == [bytes([byte]) for byte in "🧎".encode()]


@pytest.mark.parametrize("stream", [False, True])
def test_log_01_every_logprob_is_a_number_and_the_same_in_both_places(stream: bool):
    _, entries = answered(FakeEngine().ids(TEXT), stream=stream)
    for entry in entries:
        assert [type(item["logprob"]) for item in (entry, *entry["top_logprobs"])] == [float] * 4
        own = [top for top in entry["top_logprobs"] if top["bytes"] == entry["bytes"]]
        assert [(top["token"], top["logprob"]) for top in own] == [(entry["token"], entry["logprob"])]


@pytest.mark.parametrize("stream", [False, True])
def test_log_01_special_tokens_show_as_themselves_or_not_at_all(stream: bool):
    script = FakeEngine().ids(f"a{BOS}b")
    content, entries = answered(script, stream=stream, skip_special_tokens=False)
    assert content == f"a{BOS}b"
    assert [entry["token"] for entry in entries] == ["a", BOS, "b"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == content
    content, entries = answered(script, stream=stream)
    assert content == "ab"
    assert [entry["token"] for entry in entries] == ["a", "b"]
    ended, entries = answered(script, stream=stream, skip_special_tokens=False, include_stop_str_in_output=True)
    assert ended == f"a{BOS}b{EOS}"
    assert [entry["token"] for entry in entries] == ["a", BOS, "b", EOS]
