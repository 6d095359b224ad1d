"""Every refusal: its status, the field it names, and that the server answers the next request as before."""

import asyncio
import json

import httpx
import pytest

from pelton.config import EngineConfig
from pelton.errors import EngineDeadError, RequestError
from pelton.http.body import MAX_BODY_BYTES
from pelton.types import EngineStats

from fakes import Client, FakeEngine

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture
def engine() -> FakeEngine:
    engine = FakeEngine()
    engine.script = engine.ids("canary")
    return engine


@pytest.fixture
def client(engine: FakeEngine) -> Client:
    return Client.of(engine)


def assert_refused(response: httpx.Response, status: int, param: str | None, *words: str) -> None:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["code"], error["param"]) == (status, param)
    for word in words:
        assert word in error["message"]


def assert_canary(client: Client) -> None:
    answer = client.post(COMPLETIONS, {"prompt": "hi", "temperature": 0}).json()
    assert answer["choices"][0]["text"] == "canary"


SHARED = [
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "1"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 1.5}, "top_k"),
    ({"min_p": -0.1}, "min_p"),
    ({"min_p": 1.1}, "min_p"),
    ({"presence_penalty": 2.1}, "presence_penalty"),
    ({"frequency_penalty": -2.1}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"repetition_penalty": -1}, "repetition_penalty"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": 2**31 - 1}, "max_tokens"),
    ({"max_tokens": 2**63}, "max_tokens"),
    ({"max_tokens": "8"}, "max_tokens"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
    ({"min_tokens": 2047, "max_tokens": None}, "min_tokens"),
    ({"n": 0}, "n"),
    ({"n": 10**6}, "n"),
    ({"n": 2, "temperature": 0}, "n"),
    ({"n": 2, "top_k": 1}, "n"),
    ({"seed": 2**63}, "seed"),
    ({"seed": -(2**63) - 1}, "seed"),
    ({"seed": 10**100}, "seed"),
    ({"stop": ["a"] * 5}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop"),
    ({"stop": [1]}, "stop[0]"),
    ({"stop": "x" * 5000}, "stop"),
    ({"stop_token_ids": ["a"]}, "stop_token_ids[0]"),
    ({"stop_token_ids": [10**6]}, "stop_token_ids"),
    ({"stop_token_ids": [1] * 1025}, "stop_token_ids"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"allowed_token_ids": [1] * 267}, "allowed_token_ids"),
    ({"allowed_token_ids": [10**6]}, "allowed_token_ids"),
    ({"logit_bias": {"1000000": 1, "2000000": 1}}, "logit_bias"),
    ({"logit_bias": {"-5": 1}}, "logit_bias"),
    ({"logit_bias": {"abc": 1}}, "logit_bias"),
    ({"logit_bias": {"²": 1}}, "logit_bias"),
    ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
    ({"logit_bias": {"1": "high"}}, "logit_bias[...]"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"cache_salt": ""}, "cache_salt"),
    ({"priority": 2**31}, "priority"),
    ({"request_id": ""}, "request_id"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ({"truncate_prompt_tokens": 3000}, "truncate_prompt_tokens"),
    ({"truncation_side": "middle"}, "truncation_side"),
    ({"use_beam_search": True, "stream": True}, "use_beam_search"),
    ({"best_of": 2}, "best_of"),
    ({"best_of": 1, "n": 2}, "best_of"),
    ({"bad_words": ["x", ""]}, "bad_words[1]"),
    ({"bad_words": ["x" * 257]}, "bad_words[0]"),
    ({"bad_words": ["x"] * 1025}, "bad_words"),
    ({"bad_words": [1]}, "bad_words[0]"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ({"prompt_logprobs": -1, "stream": False}, "prompt_logprobs"),
    ({"prompt_logprobs": 21, "stream": False}, "prompt_logprobs"),
    ({"logits_processors": ["x"]}, "logits_processors"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ({"response_format": {}}, "response_format.type"),
]


@pytest.mark.parametrize(("fields", "param"), SHARED, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_completions_refuse_a_bad_field_by_name(client: Client, fields: dict[str, object], param: str, stream: bool):
    assert_refused(client.post(COMPLETIONS, {"prompt": "hi", "stream": stream, **fields}), 400, param)
    assert_canary(client)


@pytest.mark.parametrize(("fields", "param"), SHARED, ids=lambda value: str(value)[:40])
def test_chat_refuses_a_bad_field_by_name(client: Client, fields: dict[str, object], param: str):
    assert_refused(client.post(CHAT, {"messages": MESSAGES, **fields}), 400, param)
    assert_canary(client)


@pytest.mark.parametrize(
    ("fields", "param", "word"),
    [
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": None}, "prompt", "required"),
        ({"prompt": []}, "prompt", "empty"),
        ({"prompt": [""]}, "prompt", "empty"),
        ({"prompt": [[]]}, "prompt", "empty"),
        ({"prompt": ["hello", ""]}, "prompt[1]", "empty"),
        ({"prompt": [[1], []]}, "prompt[1]", "empty"),
        ({"prompt": ["a", [1]]}, "prompt", "mixture"),
        ({"prompt": ["a", 1]}, "prompt", "mixture"),
        ({"prompt": 3}, "prompt", "int"),
        ({"prompt": [True]}, "prompt[0]", "bool"),
        ({"prompt": [1.5]}, "prompt[0]", "float"),
        ({"prompt": [1, 999999]}, "prompt", "token id 999999 is out of vocabulary"),
        ({"prompt": [[1], [-7]]}, "prompt[1]", "token id -7 is out of vocabulary"),
        ({"prompt": [1] * 2048}, "prompt", "maximum context length is 2048 tokens"),
        ({"prompt": "x" * 5000}, "prompt", "your request has 5000"),
        ({"prompt": "x" * 10**6}, "prompt", "at least"),
        ({"prompt": ["a"] * 2000, "n": 2}, "prompt", "4000 choices"),
        ({"max_tokens": 2049}, "max_tokens", "maximum context length is 2048 tokens"),
        ({"logprobs": 21}, "logprobs", "20"),
        ({"logprobs": -1}, "logprobs", "0"),
        ({"logprobs": 21, "stream": True}, "logprobs", "20"),
        ({"logprobs": 21, "echo": True}, "logprobs", "20"),
        ({"logprobs": 20, "echo": True, "prompt": [[1] * 2000] * 13}, "prompt", "at most 524288 fit into one answer"),
        ({"logprobs": 20, "echo": True, "stream": True, "prompt": [1] * 1800}, "prompt", "at most 32768"),
        ({"best_of": 2}, "best_of", "best_of must be n"),
        ({"suffix": "x"}, "suffix", "not supported yet"),
        ({"prompt_embeds": "x"}, "prompt_embeds", "not supported yet"),
        ({"logit_bias": {"300000": 1}}, "logit_bias", "300000 is out of vocabulary; the vocabulary size is 266"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_completions_refuse_what_only_they_have(client: Client, fields: dict[str, object], param: str, word: str):
    assert_refused(client.post(COMPLETIONS, {"prompt": "hi", **fields}), 400, param, word)
    assert_canary(client)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": 3, "content": "x"}]}, "messages[0].role"),
        ({"messages": [*MESSAGES, {"role": "user"}]}, "messages[1].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [7]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": "x" * 3000}]}, "messages"),
        ({"messages": [{"role": "user", "content": "x" * 10**6}]}, "messages"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"documents": 1, "tools": 1}}, "chat_template_kwargs"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_completion_tokens": 9999}, "max_completion_tokens"),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"top_logprobs": 5, "logprobs": False}, "top_logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": -1, "logprobs": True}, "top_logprobs"),
        ({"logprobs": 1}, "logprobs"),
        ({"add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
        ({"tools": []}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"echo": True}, "echo"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_chat_refuses_what_only_it_has(client: Client, fields: dict[str, object], param: str):
    assert_refused(client.post(CHAT, {"messages": MESSAGES, **fields}), 400, param)
    assert_canary(client)


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": None, "tool_choice": "none", "response_format": {"type": "text"}, "bad_words": []},
        {"response_format": None, "structured_outputs": None, "prompt_logprobs": None, "use_beam_search": False},
        {"structured_outputs": {"json": None}, "logit_bias": {}, "stop": [], "functions": [], "modalities": ["text"]},
        {"top_k": 0, "top_logprobs": 0, "logprobs": False, "temperature": 1e-12, "stop_token_ids": []},
        {"top_k": -1, "temperature": 2, "top_p": 1, "min_p": 1, "presence_penalty": -2, "frequency_penalty": 2},
        {"top_k": 10**6, "max_tokens": 2048, "seed": -(2**63), "min_tokens": 0},
    ],
    ids=str,
)
def test_neutral_and_extreme_values_pass(client: Client, fields: dict[str, object]):
    assert client.post(CHAT, {"messages": MESSAGES, **fields}).status_code == 200


@pytest.mark.parametrize("url", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("model", ["unknown", "TINY", "tiny "])
def test_an_unknown_model_is_a_404(client: Client, url: str, model: str):
    response = client.post(url, {"model": model, "prompt": "hi", "messages": MESSAGES})
    assert_refused(response, 404, "model", f"The model `{model}` does not exist.")
    assert response.json()["error"]["type"] == "NotFoundError"


MALFORMED = {
    "empty": b"",
    "truncated": b'{"prompt": "hi"',
    "an array": b"[]",
    "a string": b'"hi"',
    "nested": b'{"prompt": "hi", "x": ' + b"[" * 200 + b"]" * 200 + b"}",
    "nested beyond the stack": b'{"prompt": "hi", "x": ' + b"[" * 10**6,
    "nested objects": b'{"a":' * 101 + b"1" + b"}" * 101,
    "NaN": b"NaN",
    "NaN and worse": b'{"prompt": "hi", "temperature": NaN',
    "a name like NaN": b'{"prompt": "NaN", "Infinity": }',
    "GBK": '{"prompt": "你好"}'.encode("gbk"),
    "a lone surrogate": b'{"prompt": "\\ud83d"}',
    "a low surrogate": b'{"prompt": "\\udc00 and more text"}',
    "a raw NUL": b'{"prompt": "a\x00b"}',
    "a byte order mark": b'\xef\xbb\xbf{"prompt": "hi"}',
    "trailing data": b'{"prompt": "hi"} {"prompt": "hi"}',
}


@pytest.mark.parametrize("url", [COMPLETIONS, CHAT])
def test_stream_options_are_for_streams(client: Client, url: str):
    body = {"prompt": "hi", "messages": MESSAGES, "stream_options": {"include_usage": True}}
    assert_refused(client.post(url, body), 400, "stream_options")


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_body_is_a_400(client: Client, body: bytes):
    response = client.request("POST", COMPLETIONS, content=body, headers={"Content-Type": "application/json"})
    assert_refused(response, 400, None)
    assert_canary(client)


@pytest.mark.parametrize(
    ("field", "number"), [("temperature", b"1e999"), ("seed", b"1" + b"0" * 5000)], ids=["float", "int"]
)
def test_a_number_beyond_any_type_is_a_400(client: Client, field: str, number: bytes):
    body = b'{"prompt": "hi", "%s": %s}' % (field.encode(), number)
    response = client.request("POST", COMPLETIONS, content=body, headers={"Content-Type": "application/json"})
    assert_refused(response, 400, field, "out of range")


@pytest.mark.parametrize(
    ("fields", "param", "place"),
    [
        (b'"temperature": NaN', "temperature", "temperature"),
        (b'"top_p": -Infinity', "top_p", "top_p"),
        (b'"logit_bias": {"5": 1.0, "7": NaN}', "logit_bias", "logit_bias.7"),
        (b'"stop_token_ids": [1, Infinity]', "stop_token_ids", "stop_token_ids.1"),
        (b'"unknown": {"deep": [[NaN]]}', "unknown", "unknown.deep.0.0"),
    ],
)
def test_a_number_that_is_not_finite_is_named(client: Client, fields: bytes, param: str, place: str):
    body = b'{"prompt": "hi", ' + fields + b"}"
    response = client.request("POST", COMPLETIONS, content=body, headers={"Content-Type": "application/json"})
    assert_refused(response, 400, param, f"{place}: numbers must be finite")


def test_brackets_inside_strings_are_no_nesting(client: Client):
    body = json.dumps({"prompt": "hi", "x": '[{"\\' * 500})
    response = client.request("POST", COMPLETIONS, content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 200


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded", "application/json2"])
def test_another_content_type_is_a_400(client: Client, content_type: str | None):
    headers = {} if content_type is None else {"Content-Type": content_type}
    response = client.request("POST", COMPLETIONS, content=b'{"prompt": "hi"}', headers=headers)
    assert_refused(response, 400, None, "application/json")


def test_a_charset_in_the_content_type_is_fine(client: Client):
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert client.request("POST", COMPLETIONS, content=b'{"prompt": "hi"}', headers=headers).status_code == 200


def test_a_too_large_body_is_a_413(client: Client):
    body = b'{"prompt": "' + b"x" * MAX_BODY_BYTES + b'"}'
    response = client.request("POST", COMPLETIONS, content=body, headers={"Content-Type": "application/json"})
    assert_refused(response, 413, None)
    assert_canary(client)


def test_a_nul_character_in_a_prompt_is_text(client: Client):
    assert client.post(COMPLETIONS, {"prompt": "a\x00b"}).status_code == 200


def test_unknown_paths_and_methods_have_the_error_shape(client: Client):
    assert_refused(client.get("/nope"), 404, None)
    wrong_method = client.get(COMPLETIONS)
    assert_refused(wrong_method, 405, None)
    assert wrong_method.headers["allow"] == "POST"


def test_a_dead_engine_is_a_503_with_retry_after(engine: FakeEngine, client: Client):
    engine.fail_after, engine.error = 0, EngineDeadError("process 1234 died")
    for stream in (False, True):
        response = client.post(COMPLETIONS, {"prompt": "hi", "stream": stream})
        assert_refused(response, 503, None, "engine has stopped")
        assert int(response.headers["retry-after"]) > 0
        assert "1234" not in response.text


def test_an_error_of_the_engine_s_own_keeps_its_status_and_field(engine: FakeEngine, client: Client):
    engine.fail_after, engine.error = 0, RequestError("too much", param="prompt", status=400)
    assert_refused(client.post(COMPLETIONS, {"prompt": "hi", "stream": True}), 400, "prompt", "too much")


def test_a_bug_shows_nothing_of_itself(engine: FakeEngine, client: Client):
    engine.fail_after = 0
    for url in (COMPLETIONS, CHAT):
        response = client.post(url, {"prompt": "hi", "messages": MESSAGES, "stream": True})
        assert_refused(response, 500, None)
        assert "secret" not in response.text


def test_a_full_queue_is_a_429_with_retry_after(engine: FakeEngine):
    engine.config = EngineConfig(max_model_len=2048, served_model_name="tiny", max_queue=10)
    engine.stats = EngineStats(num_waiting=10)
    client = Client.of(engine)
    response = client.post(COMPLETIONS, {"prompt": "hi"})
    assert_refused(response, 429, None)
    assert response.json()["error"]["type"] == "RateLimitError"
    assert int(response.headers["retry-after"]) > 0
    engine.stats = EngineStats(num_waiting=9)
    assert_canary(client)


def test_a_burst_fills_the_queue_before_the_engine_has_counted_it(engine: FakeEngine):
    engine.config = EngineConfig(max_model_len=2048, served_model_name="tiny", max_num_seqs=2, max_queue=3)
    engine.delay = 0.05
    app = Client.of(engine).app

    async def burst() -> list[int]:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            posts = [client.post(COMPLETIONS, json={"prompt": "hi"}) for _ in range(9)]
            return sorted(response.status_code for response in await asyncio.gather(*posts))

    for _ in range(2):
        assert asyncio.run(burst()) == [200] * 5 + [429] * 4


@pytest.mark.parametrize("url", ["/v1/messages", "/v1/messages/count_tokens"])
def test_a_conversation_that_says_nothing_is_a_400(client: Client, url: str):
    body = {"max_tokens": 1, "messages": [{"role": "assistant", "content": []}]}
    response = client.post(url, body)
    assert response.status_code == 400
    assert "messages" in response.json()["error"]["message"]
    assert_canary(client)
