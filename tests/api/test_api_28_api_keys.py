"""With keys, every route that computes or changes something is a 401 without a valid one; health is open."""

import hmac

import pytest

from pelton.config import EngineConfig
from pelton.http.app import ROUTES

from fakes import Client, FakeEngine

OPEN = {"/health", "/ping", "/version"}
CLOSED = [(route.method, route.path) for route in ROUTES if route.path not in OPEN]


@pytest.fixture
def client() -> Client:
    config = EngineConfig(max_model_len=2048, served_model_name="tiny", api_key=("first", "second"))
    return Client.of(FakeEngine(script=[65], config=config))


@pytest.mark.parametrize("key", [None, "", "Bearer", "Bearer wrong", "Bearer firs", "Basic first", "first"])
@pytest.mark.parametrize(("method", "path"), CLOSED)
def test_api_28_no_valid_key_is_a_401(client: Client, method: str, path: str, key: str | None):
    headers = {} if key is None else {"authorization": key}
    response = client.request(method, path, json={}, headers=headers)
    assert response.status_code == 401
    assert response.json()["error"]["message"]


@pytest.mark.parametrize("path", sorted(OPEN))
def test_api_28_probes_are_open(client: Client, path: str):
    assert client.get(path).status_code == 200


@pytest.mark.parametrize("key", ["first", "second"])
def test_api_28_a_valid_key_opens(client: Client, key: str):
    headers = {"authorization": f"Bearer {key}"}
    assert client.post("/v1/completions", {"prompt": "x"}, headers=headers).status_code == 200


def test_api_28_keys_compare_in_constant_time(client: Client, monkeypatch: pytest.MonkeyPatch):
    """By the one function that does, with every key, also when the first matches."""
    compared: list[bytes] = []
    compare = hmac.compare_digest

    def spy(given: bytes, key: bytes) -> bool:
        compared.append(key)
        return compare(given, key)

    monkeypatch.setattr(hmac, "compare_digest", spy)
    client.post("/v1/completions", {"prompt": "x"}, headers={"authorization": "Bearer first"})
    assert compared == [b"first", b"second"]
