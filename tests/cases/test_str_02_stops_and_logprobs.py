"""Where a stop string ends the text, logprobs end with it: entries and text agree, streamed or not.

Reported: entries of the stop string behind the end of the text, streams that show them before the text
(vllm#31135, vllm#5699, llama.cpp#4166).
"""

import pytest

from fakes import Client, FakeEngine

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
TEXT = "ok 🫠 hello DEFGHI more"


def client_of(size: int) -> Client:
    engine = FakeEngine(num_tokens_per_delta=size)
    engine.script = engine.ids(TEXT)
    return Client.of(engine)


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize(("stop", "visible"), [("DEFG", "ok 🫠 hello "), ("llo", "ok 🫠 he"), ("🫠", "ok ")])
def test_str_02_bytes_of_the_entries_begin_with_the_text(stop: str, visible: str, size: int):
    body = {"messages": [{"role": "user", "content": "x"}], "stop": stop, "logprobs": True, "max_tokens": 90}
    whole = client_of(size).post(CHAT, body).json()["choices"][0]
    assert whole["message"]["content"] == visible
    joined = bytes(byte for entry in whole["logprobs"]["content"] for byte in entry["bytes"])
    assert joined.startswith(visible.encode())
    last = whole["logprobs"]["content"][-1]["bytes"]
    assert len(joined) - len(last) < len(visible.encode()), "an entry lies wholly behind the end of the text"
    sent_text, sent_bytes = "", b""
    streamed = []
    for event in client_of(size).events(CHAT, body):
        choice = event["choices"][0]
        sent_text += choice["delta"].get("content") or ""
        entries = choice["logprobs"]["content"] if choice["logprobs"] else []
        streamed += entries
        sent_bytes += bytes(byte for entry in entries for byte in entry["bytes"])
        straddling = len(streamed[-1]["bytes"]) if streamed else 0  # the stop string may begin inside of a token
        assert len(sent_bytes) - straddling <= len(sent_text.encode()), "an entry is shown before its text"
    assert streamed == whole["logprobs"]["content"]


@pytest.mark.parametrize("size", [1, 3])
def test_str_02_offsets_of_a_stopped_completion_point_into_the_text(size: int):
    body = {"prompt": "x", "stop": "DEFG", "logprobs": 1, "max_tokens": 90}
    choice = client_of(size).post(COMPLETIONS, body).json()["choices"][0]
    assert all(0 <= offset < len(choice["text"]) for offset in choice["logprobs"]["text_offset"])
    assert "D" not in "".join(choice["logprobs"]["tokens"])
