"""use_beam_search over a fake engine whose predictions are known."""

from collections.abc import Sequence
from typing import Any

import pytest

from pelton.types import Output, SamplingParams, TokenLogprobs

from fakes import Client, FakeEngine

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
BEAMS = {"use_beam_search": True, "n": 2, "temperature": 0, "max_tokens": 3}


class Predicting(FakeEngine):
    """Says "ab" or, less likely, "cd", then end-of-sequence."""

    def _outputs(self, prompt_ids: Sequence[int], params: SamplingParams) -> list[Output]:
        a, b, c, d = self.ids("abcd")
        end = self.tokenizer.eos_token_ids[0]
        likely = {a: (b, d), b: (end, a), c: (d, b), d: (end, c)}.get(prompt_ids[-1], (a, c))
        second = -1.0 if likely == (a, c) else -2.0
        top = ((likely[0], -0.5), (likely[1], second), (32, -9.0), (33, -9.5), (34, -9.75))[: params.logprobs]
        return [Output(0, (likely[0],), (TokenLogprobs(likely[0], -0.5, 1, top),), "length")]


@pytest.fixture
def client() -> Client:
    return Client.of(Predicting())


def test_choices_are_the_best_sequences_and_the_same_each_time(client: Client):
    answer = client.post(COMPLETIONS, {"prompt": "hi", **BEAMS}).json()
    shown = [(choice["index"], choice["text"], choice["finish_reason"]) for choice in answer["choices"]]
    assert shown == [(0, "ab", "stop"), (1, "cd", "stop")]
    assert answer["usage"]["prompt_tokens"] == 2
    assert answer["usage"]["completion_tokens"] == 6  # both with their end-of-sequence token
    assert client.post(COMPLETIONS, {"prompt": "hi", **BEAMS}).json()["choices"] == answer["choices"]


def test_the_same_in_a_chat_and_for_several_prompts(client: Client):
    chat = client.post(CHAT, {"messages": [{"role": "user", "content": "hi"}], **BEAMS}).json()
    assert [choice["message"]["content"] for choice in chat["choices"]] == ["ab", "cd"]
    several = client.post(COMPLETIONS, {"prompt": ["hi", "ho"], **BEAMS}).json()
    assert [choice["text"] for choice in several["choices"]] == ["ab", "cd"] * 2
    assert [choice["index"] for choice in several["choices"]] == [0, 1, 2, 3]


def test_best_of_is_the_width_of_the_beam():
    engine = Predicting()
    body = {"prompt": "hi", **BEAMS, "n": 1, "best_of": 4}
    choices = Client.of(engine).post(COMPLETIONS, body).json()["choices"]
    assert [choice["text"] for choice in choices] == ["ab"]
    assert engine.calls[0].params.logprobs == 4 + 1  # enough that every beam goes on where one of them ends
    assert engine.num_live == 0


def test_logprobs_are_those_of_the_sequence(client: Client):
    choices = client.post(COMPLETIONS, {"prompt": "hi", **BEAMS, "logprobs": 2}).json()["choices"]
    assert choices[1]["logprobs"]["tokens"] == ["c", "d"]
    assert choices[1]["logprobs"]["token_logprobs"] == [-1.0, -0.5]
    assert choices[1]["logprobs"]["top_logprobs"][0] == {"a": -0.5, "c": -1.0}


def test_a_stop_string_cuts_the_text(client: Client):
    choice = client.post(COMPLETIONS, {"prompt": "hi", **BEAMS, "n": 1, "stop": ["b"]}).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("a", "stop", "b")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": True}, "use_beam_search"),
        ({"n": 0}, "n"),
        ({"n": 20}, "n"),
        ({"n": 2**31}, "n"),
        ({"best_of": 1}, "best_of"),
        ({"best_of": 20}, "best_of"),
        ({"best_of": -(2**31)}, "best_of"),
        ({"best_of": 2**63}, "best_of"),
        ({"stop_token_ids": list(range(40))}, "n"),
        ({"length_penalty": 1e308}, "length_penalty"),
        ({"length_penalty": -11}, "length_penalty"),
        ({"temperature": 3}, "temperature"),
        ({"presence_penalty": 1}, "presence_penalty"),
        ({"frequency_penalty": 1}, "frequency_penalty"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"logit_bias": {"1": 1}}, "logit_bias"),
        ({"allowed_token_ids": [1]}, "allowed_token_ids"),
        ({"bad_words": ["x"]}, "bad_words"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"echo": True, "logprobs": 1}, "prompt_logprobs"),
        ({"echo": True, "max_tokens": 0}, "max_tokens"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_a_search_cannot_obey_is_refused_by_name(client: Client, fields: dict[str, Any], param: str):
    response = client.post(COMPLETIONS, {"prompt": "hi", **BEAMS, **fields})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert client.post(COMPLETIONS, {"prompt": "hi", **BEAMS}).json()["choices"][0]["text"] == "ab"


def test_a_failing_search_ends_the_request():
    engine = Predicting(fail_after=0)
    assert Client.of(engine).post(COMPLETIONS, {"prompt": ["hi", "ho"], **BEAMS}).status_code == 500
    assert engine.num_live == 0


def test_a_bug_in_a_prediction_ends_the_request_alone():
    class Silent(Predicting):
        def _outputs(self, prompt_ids: Sequence[int], params: SamplingParams) -> list[Output]:
            return [Output(0, (1,), None, "length")]

    answer = Client.of(Silent()).post(COMPLETIONS, {"prompt": "hi", **BEAMS}).json()
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["abort", "abort"]
