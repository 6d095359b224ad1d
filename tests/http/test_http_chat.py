"""POST /v1/chat/completions over a fake engine that emits known tokens."""

from typing import Any

import pytest

from fakes import EOS, Client, FakeEngine

URL = "/v1/chat/completions"
USER = {"role": "user", "content": "hi"}
BODY: dict[str, Any] = {"messages": [USER]}


def scripted(text: str, **options) -> tuple[FakeEngine, Client]:
    engine = FakeEngine(**options)
    engine.script = engine.ids(text)
    return engine, Client.of(engine)


def prompt_text(engine: FakeEngine) -> str:
    return engine.tokenizer.decode(engine.calls[-1].prompt_ids, skip_special_tokens=False)


def by_index(events: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    choices: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        for choice in event["choices"]:
            choices.setdefault(choice["index"], []).append(choice)
    return choices


def test_whole_answer():
    engine, client = scripted("hello world")
    answer = client.post(URL, BODY).json()
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hello world"},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
    assert answer["usage"]["prompt_tokens"] == len(engine.calls[0].prompt_ids)
    assert prompt_text(engine) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_default_max_tokens_is_the_rest_of_the_context():
    engine, client = scripted("x")
    client.post(URL, BODY)
    assert engine.calls[-1].params.max_tokens == 2048 - len(engine.calls[-1].prompt_ids)
    client.post(URL, {**BODY, "max_tokens": 9, "max_completion_tokens": 7})
    assert engine.calls[-1].params.max_tokens == 7


def test_stream_frames_role_text_and_finish():
    _, client = scripted("hello world é")
    events = client.events(URL, {**BODY, "stream_options": {"include_usage": True}})
    *chunks, last = events
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert all("role" not in choice["delta"] for choice in choices[1:])
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert choices[-1]["delta"] == {}
    assert "".join(choice["delta"].get("content", "") for choice in choices) == "hello world é"
    assert last["choices"] == []
    assert last["usage"] == client.post(URL, BODY).json()["usage"]
    assert all(chunk["usage"] is None for chunk in chunks)
    plain = client.events(URL, BODY)
    assert all(event["usage"] is None and event["choices"] for event in plain)


def test_each_of_n_streamed_choices_has_its_own_role_and_finish():
    client = Client.of(FakeEngine())
    body = {**BODY, "n": 3, "temperature": 0.8, "seed": 7, "max_tokens": 20}
    whole = client.post(URL, body).json()
    events = client.events(URL, {**body, "stream_options": {"include_usage": True}})
    streamed = by_index(events)
    assert sorted(streamed) == [0, 1, 2]
    for choice in whole["choices"]:
        chunks = streamed[choice["index"]]
        assert [chunk["delta"].get("role") for chunk in chunks] == ["assistant"] + [None] * (len(chunks) - 1)
        assert [chunk["finish_reason"] for chunk in chunks][:-1] == [None] * (len(chunks) - 1)
        assert chunks[-1]["finish_reason"] == choice["finish_reason"]
        assert "".join(chunk["delta"].get("content", "") for chunk in chunks) == choice["message"]["content"]
    assert len({choice["message"]["content"] for choice in whole["choices"]}) == 3
    assert events[-1]["usage"] == whole["usage"]
    assert whole["usage"]["completion_tokens"] == 60


def test_choices_that_end_at_different_steps_send_nothing_after_their_finish():
    engine = FakeEngine()
    lengths = {10: 3, 11: 9, 12: 6}
    engine.script = lambda prompt_ids, params: engine.ids("x" * lengths[params.seed])
    streamed = by_index(Client.of(engine).events(URL, {**BODY, "n": 3, "seed": 10}))
    for index, length in enumerate(lengths.values()):
        assert [c["finish_reason"] for c in streamed[index]] == [None] * (length + 1) + ["stop"]


@pytest.mark.parametrize(
    ("fields", "script"),
    [
        ({}, []),
        ({"stop": ["hello"]}, [262]),
        ({"stop_token_ids": [264]}, [264]),
        ({"n": 2}, []),
    ],
    ids=["end of sequence", "stop string", "special stop token", "two choices"],
)
def test_an_answer_that_stops_at_its_first_token_is_an_empty_string(fields: dict[str, object], script: list[int]):
    engine = FakeEngine(script=script)
    client = Client.of(engine)
    whole = client.post(URL, {**BODY, **fields}).json()
    for choice in whole["choices"]:
        assert choice["message"] == {"role": "assistant", "content": ""}
        assert choice["finish_reason"] == "stop"
    assert whole["usage"]["completion_tokens"] == len(whole["choices"])
    streamed = client.events(URL, {**BODY, **fields, "stream_options": {"include_usage": True}})
    for chunks in by_index(streamed).values():
        assert [chunk["delta"] for chunk in chunks] == [{"role": "assistant", "content": ""}, {}]
    assert streamed[-1]["usage"] == whole["usage"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("skip", [False, True])
def test_logprob_bytes_join_to_the_content(stream: bool, skip: bool):
    _, client = scripted("🧎 ok")
    body = {**BODY, "logprobs": True, "top_logprobs": 3, "skip_special_tokens": skip}
    if stream:
        chunks = [event["choices"][0] for event in client.events(URL, body)]
        text = "".join(chunk["delta"].get("content", "") for chunk in chunks)
        entries = [entry for chunk in chunks if chunk["logprobs"] for entry in chunk["logprobs"]["content"]]
    else:
        choice = client.post(URL, body).json()["choices"][0]
        text, entries = choice["message"]["content"], choice["logprobs"]["content"]
    assert text == "🧎 ok"
    assert bytes(byte for entry in entries for byte in entry["bytes"]) == text.encode()
    assert len(entries) == 4 + 3
    assert entries[0]["token"] == "bytes:\\xf0"
    for entry in entries:
        assert len(entry["top_logprobs"]) == 3
        assert isinstance(entry["logprob"], float)
        assert {"token": entry["token"], "logprob": entry["logprob"], "bytes": entry["bytes"]} in entry["top_logprobs"]


def test_visible_special_tokens_have_entries():
    engine = FakeEngine()
    engine.script = [*engine.ids("a"), 265, *engine.ids("b")]
    body = {**BODY, "logprobs": True, "ignore_eos": True, "max_tokens": 3}
    visible = Client.of(engine).post(URL, {**body, "skip_special_tokens": False}).json()["choices"][0]
    assert [entry["token"] for entry in visible["logprobs"]["content"]] == ["a", EOS, "b"]
    hidden = Client.of(engine).post(URL, body).json()["choices"][0]
    assert [entry["token"] for entry in hidden["logprobs"]["content"]] == ["a", "b"]


def test_top_logprobs_zero_are_empty_lists():
    _, client = scripted("ab")
    content = client.post(URL, {**BODY, "logprobs": True, "top_logprobs": 0}).json()["choices"][0]["logprobs"][
        "content"
    ]
    assert [entry["top_logprobs"] for entry in content] == [[], []]


@pytest.mark.parametrize(
    ("content", "equal"),
    [
        ([{"type": "text", "text": "hi"}], "hi"),
        ([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}], "one\ntwo"),
        (["plain"], "plain"),
        ([], ""),
    ],
)
@pytest.mark.parametrize("role", ["user", "system", "assistant", "tool"])
def test_text_parts_render_as_their_joined_string(role: str, content: list[Any], equal: str):
    engine, client = scripted("a")
    client.post(URL, {"messages": [{"role": role, "content": content}]})
    rendered = prompt_text(engine)
    client.post(URL, {"messages": [{"role": role, "content": equal}]})
    assert rendered == prompt_text(engine) == f"<|im_start|>{role}\n{equal}<|im_end|>\n<|im_start|>assistant\n"


def test_custom_roles_pass_to_the_template():
    engine, client = scripted("a")
    client.post(URL, {"messages": [{"role": "narrator", "content": "once"}], "add_generation_prompt": False})
    assert prompt_text(engine) == "<|im_start|>narrator\nonce<|im_end|>\n"


def test_a_client_s_template_gets_its_variables_and_documents():
    engine, client = scripted("a")
    body = {
        **BODY,
        "chat_template": "{{ messages[0].content }}|{{ tone }}|{{ documents[0].title }}|{{ reasoning_effort }}",
        "chat_template_kwargs": {"tone": "dry"},
        "documents": [{"title": "T", "text": "t"}],
        "reasoning_effort": "low",
    }
    assert client.post(URL, body).status_code == 200
    assert prompt_text(engine) == "hi|dry|T|low"


@pytest.mark.parametrize(
    "template", ["{{ raise_exception('Only user turns') }}", "{% if %}", "{{ 1 / 0 }}", "{{ x.y.z }}"]
)
def test_a_template_that_fails_is_a_400_and_no_trace(template: str):
    _, client = scripted("a")
    response = client.post(URL, {**BODY, "chat_template": template})
    assert response.status_code == 400
    assert response.json()["error"]["message"]
    assert "Traceback" not in response.text
    assert client.post(URL, BODY).status_code == 200


def test_a_template_that_gives_nothing_is_a_400():
    _, client = scripted("a")
    assert client.post(URL, {**BODY, "chat_template": "{# nothing #}"}).status_code == 400


def test_continue_final_message_leaves_the_last_turn_open():
    engine, client = scripted("a")
    body = {"messages": [USER, {"role": "assistant", "content": "well"}], "continue_final_message": True}
    assert client.post(URL, body).status_code == 200
    assert prompt_text(engine).endswith("<|im_start|>assistant\nwell")


def test_token_ids_are_returned_on_request():
    engine, client = scripted("hello")
    body = {**BODY, "return_token_ids": True}
    answer = client.post(URL, body).json()
    assert answer["prompt_token_ids"] == list(engine.calls[-1].prompt_ids)
    assert answer["choices"][0]["token_ids"] == [262, 265]
    events = client.events(URL, body)
    assert [i for event in events for i in event["choices"][0].get("token_ids", [])] == [262, 265]
    assert [e["prompt_token_ids"] for e in events if "prompt_token_ids" in e] == [answer["prompt_token_ids"]]


def test_an_error_in_the_middle_is_an_event_before_done():
    engine, client = scripted("hello world", fail_after=1)
    *chunks, last = client.events(URL, BODY)
    assert chunks
    assert last == {
        "error": {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}
    }
    assert engine.num_live == 0
