"""Echo puts the prompt first, with its logprobs if asked for, and alone where max_tokens is 0."""

from fakes import Client, FakeEngine


def test_api_05_text_begins_with_the_prompt_and_its_first_logprob_is_null():
    body = {"prompt": "hi é", "echo": True, "logprobs": 1, "max_tokens": 3}
    choice = Client.of(FakeEngine()).post("/v1/completions", body).json()["choices"][0]
    given = choice["logprobs"]
    assert choice["text"].startswith("hi é")
    assert given["token_logprobs"][0] is None and given["top_logprobs"][0] is None
    assert all(isinstance(number, float) for number in given["token_logprobs"][1:])
    num_tokens = len(FakeEngine().ids("hi é")) + 3
    assert {len(given[name]) for name in given} == {num_tokens}


def test_api_05_without_output_it_scores_the_prompt_alone():
    engine = FakeEngine()
    body = {"prompt": "hello w", "echo": True, "logprobs": 1, "max_tokens": 0}
    answer = Client.of(engine).post("/v1/completions", body).json()
    choice = answer["choices"][0]
    assert choice["text"] == "hello w"
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 0
    assert len(choice["logprobs"]["tokens"]) == len(engine.ids("hello w"))


def test_api_05_no_output_without_echo_is_a_400():
    response = Client.of(FakeEngine()).post("/v1/completions", {"prompt": "x", "max_tokens": 0})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "max_tokens")
