"""Text, texts, ids and lists of ids; choice i of prompt p has the index p * n + i."""

import pytest

from fakes import Client, FakeEngine


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("hi", [(71, 72)]),
        (["hi", "h"], [(71, 72), (71,)]),
        ([71, 72], [(71, 72)]),
        ([[71, 72], [5]], [(71, 72), (5,)]),
    ],
)
def test_api_02_every_form_becomes_its_ids(prompt: object, expected: list[tuple[int, ...]]):
    engine = FakeEngine(script=[65])
    assert tuple(engine.ids("hi")) == (71, 72)
    answer = Client.of(engine).post("/v1/completions", {"prompt": prompt}).json()
    assert [call.prompt_ids for call in engine.calls] == expected
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(expected)))


def test_api_02_the_index_is_prompt_times_n_plus_sample():
    """Each choice's text tells which prompt and which sample it is."""

    def script(prompt_ids, params):
        return [prompt_ids[0], 60 + params.seed]

    engine = FakeEngine(script=script)
    body = {"prompt": [[65], [70]], "n": 3, "seed": 0, "temperature": 1.0, "max_tokens": 2, "return_token_ids": True}
    choices = Client.of(engine).post("/v1/completions", body).json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(6))
    assert [choice["token_ids"] for choice in choices] == [[p, 60 + i] for p in (65, 70) for i in range(3)]
