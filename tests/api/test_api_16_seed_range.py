"""A seed outside int64 is a 400."""

import pytest

from fakes import Client, FakeEngine

BODY = {"prompt": "x", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}


@pytest.mark.parametrize("url", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, 10**30, 1.5, "7"])
def test_api_16_what_is_no_int64_is_refused(url: str, seed: object):
    response = Client.of(FakeEngine()).post(url, {**BODY, "seed": seed})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "seed")


@pytest.mark.parametrize("seed", [2**63 - 1, -(2**63), 0, -1])
def test_api_16_every_int64_is_taken(seed: int):
    engine = FakeEngine()
    body = {**BODY, "seed": seed, "n": 2, "temperature": 1.0}
    assert Client.of(engine).post("/v1/completions", body).status_code == 200
    assert engine.calls[0].params.seed == seed
    assert engine.calls[1].params.seed != seed
