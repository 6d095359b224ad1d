"""An answer that ends with its first token is an empty string, and its stream is a whole stream.

Reported: null content, a stream without a finish chunk, or a crash when the first token ends the text
(vllm#11089, llama.cpp#6770).
"""

from typing import Any

import pytest

from fakes import EOS, Client, FakeEngine

URL = "/v1/chat/completions"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 20}
END = FakeEngine().ids(EOS)[0]
STOPS = FakeEngine().ids("hello")
VARIANTS = {
    "end of sequence": ([END], {}),
    "a stop string": ([*STOPS, 33], {"stop": ["hello"]}),
    "a special stop token": ([END, 33], {"stop_token_ids": [END], "ignore_eos": True, "skip_special_tokens": True}),
    "end of sequence, n of 2": ([END], {"n": 2, "temperature": 1.0}),
    "end of sequence, shown": ([END], {"skip_special_tokens": False}),
}


@pytest.mark.parametrize(("script", "fields"), VARIANTS.values(), ids=VARIANTS)
def test_str_05_content_is_the_empty_string_and_the_token_counts(script: list[int], fields: dict[str, Any]):
    answer = Client.of(FakeEngine(script=script)).post(URL, {**BODY, **fields}).json()
    num_choices = fields.get("n", 1)
    assert len(answer["choices"]) == num_choices
    for choice in answer["choices"]:
        assert choice["message"] == {"role": "assistant", "content": ""}
        assert choice["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == num_choices


@pytest.mark.parametrize(("script", "fields"), VARIANTS.values(), ids=VARIANTS)
def test_str_05_a_stream_has_role_finish_usage_and_done(script: list[int], fields: dict[str, Any]):
    client = Client.of(FakeEngine(script=script))
    body = {**BODY, **fields, "stream_options": {"include_usage": True}}
    *chunks, last = client.events(URL, body)
    for index in range(fields.get("n", 1)):
        choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert [choice["delta"] for choice in choices] == [{"role": "assistant", "content": ""}, {}]
        assert [choice["finish_reason"] for choice in choices] == [None, "stop"]
    assert last["usage"] == client.post(URL, {**BODY, **fields}).json()["usage"]
