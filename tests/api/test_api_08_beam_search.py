"""Beam search works unstreamed, and is refused in a stream."""

import pytest

from live import complete

from canary import Canary
from fakes import Client, FakeEngine

BODY = {"prompt": "1 2 3 4", "use_beam_search": True, "n": 2, "temperature": 0, "max_tokens": 4}


@pytest.mark.parametrize("url", ["/v1/completions", "/v1/chat/completions"])
def test_api_08_with_stream_it_is_a_400(url: str):
    body = {**BODY, "messages": [{"role": "user", "content": "x"}], "stream": True}
    response = Client.of(FakeEngine()).post(url, body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "use_beam_search")


@pytest.mark.e2e
def test_api_08_beams_are_two_different_texts_of_which_the_likeliest_is_first(canary: Canary):
    choices = complete(canary, **BODY)["choices"]
    assert [choice["index"] for choice in choices] == [0, 1]
    assert len({choice["text"] for choice in choices}) == 2
    canary.check()
