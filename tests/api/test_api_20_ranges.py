"""Every number has a range; outside of it is a 400 that names the field, NaN and infinity too."""

import pytest

from fakes import Client, FakeEngine

OUTSIDE = {
    "temperature": ["-0.01", "2.01"],
    "top_p": ["0", "-1", "1.01"],
    "top_k": ["-2"],
    "min_p": ["-0.01", "1.01"],
    "presence_penalty": ["-2.01", "2.01"],
    "frequency_penalty": ["-2.01", "2.01"],
    "repetition_penalty": ["0", "-1"],
    "max_tokens": ["0", "-1"],
    "min_tokens": ["-1", "17"],
    "n": ["0", "-1"],
    "stop": ['["a","b","c","d","e"]', '[""]', '""'],
}
INSIDE = {
    "temperature": ["0", "2"],
    "top_p": ["1", "0.001"],
    "top_k": ["-1", "0", "1000000"],
    "min_p": ["0", "1"],
    "presence_penalty": ["-2", "2"],
    "frequency_penalty": ["-2", "2"],
    "repetition_penalty": ["0.01", "5"],
    "max_tokens": ["1", "2048"],
    "min_tokens": ["0", "16"],
    "n": ["1", "5"],
    "stop": ['["a","b","c","d"]', "[]", "null"],
}
REAL = ["temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"]


def send(field: str, value: str) -> tuple[int, str | None]:
    body = f'{{"prompt": "x", "{field}": {value}}}'
    headers = {"content-type": "application/json"}
    response = Client.of(FakeEngine()).request("POST", "/v1/completions", content=body, headers=headers)
    return response.status_code, response.json()["error"]["param"] if response.status_code != 200 else None


@pytest.mark.parametrize(("field", "value"), [(field, value) for field in OUTSIDE for value in OUTSIDE[field]])
def test_api_20_outside_is_refused_by_name(field: str, value: str):
    assert send(field, value) == (400, field)


@pytest.mark.parametrize(("field", "value"), [(field, value) for field in INSIDE for value in INSIDE[field]])
def test_api_20_the_bounds_are_taken(field: str, value: str):
    assert send(field, value) == (200, None)


@pytest.mark.parametrize("field", REAL)
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_api_20_nan_and_infinity_are_refused(field: str, value: str):
    assert send(field, value)[0] == 400


@pytest.mark.parametrize("fields", [{"temperature": 0}, {"top_k": 1}])
def test_api_20_greedy_has_one_choice(fields: dict[str, object]):
    response = Client.of(FakeEngine()).post("/v1/completions", {"prompt": "x", "n": 2, **fields})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "n")
