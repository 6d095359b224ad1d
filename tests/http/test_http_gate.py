"""API keys, tenants, probes and draining."""

from dataclasses import replace

import pytest

import pelton
from pelton.config import EngineConfig
from pelton.http.app import ROUTES, create_app
from pelton.http.gate import OPEN_PATHS, Lifecycle
from pelton.http.service import root_model_name

from fakes import Client, FakeEngine

PROTECTED = [("GET", "/nope"), *((route.method, route.path) for route in ROUTES if route.path not in OPEN_PATHS)]


@pytest.fixture
def engine() -> FakeEngine:
    engine = FakeEngine(script=[])
    engine.config = replace(engine.config, api_key=("first", "sécond"))
    return engine


@pytest.mark.parametrize(("method", "path"), PROTECTED)
@pytest.mark.parametrize(
    "header", [None, "", "first", "Bearer", "Bearer ", "Bearer wrong", "Basic first", "Bearer firs"]
)
def test_without_a_valid_key_everything_but_probes_is_a_401(
    engine: FakeEngine, method: str, path: str, header: str | None
):
    headers = {} if header is None else {"Authorization": header}
    response = Client.of(engine).request(method, path, headers=headers)
    assert response.status_code == 401
    assert response.json()["error"]["type"].replace("_", "").lower() == "authenticationerror"
    assert engine.calls == []


@pytest.mark.parametrize("key", ["first", "sécond"])
def test_any_of_the_keys_opens(engine: FakeEngine, key: str):
    headers = {"Authorization": f"bearer {key}".encode()}
    assert Client.of(engine).post("/v1/completions", {"prompt": "a"}, headers=headers).status_code == 200


@pytest.mark.parametrize("path", ["/health", "/ping", "/version"])
def test_probes_need_no_key(engine: FakeEngine, path: str):
    assert Client.of(engine).get(path).status_code == 200


def test_clients_with_different_keys_or_salts_share_no_cache(engine: FakeEngine):
    client = Client.of(engine)
    for key in ("first", "sécond"):
        for salt in (None, "a", "0:a", "1:"):
            headers = {"Authorization": f"Bearer {key}".encode()}
            client.post("/v1/completions", {"prompt": "a", "cache_salt": salt}, headers=headers)
    salts = [call.salt for call in engine.calls]
    assert len(set(salts)) == 8
    client.post("/v1/completions", {"prompt": "a"}, headers={"Authorization": "Bearer first"})
    assert engine.calls[-1].salt == salts[0]


@pytest.mark.parametrize(
    ("health", "ready", "alive"),
    [("ok", 200, 200), ("starting", 503, 200), ("stuck", 503, 503), ("dead", 503, 503)],
)
def test_health_is_readiness_and_ping_is_liveness(engine: FakeEngine, health: str, ready: int, alive: int):
    engine.health = health
    client = Client.of(engine)
    response = client.get("/health")
    assert (response.status_code, response.content) == (ready, b"")
    assert client.get("/ping").status_code == alive


def test_version_load_and_models():
    client = Client.of(FakeEngine())
    assert client.get("/version").json() == {"version": pelton.__version__}
    assert client.get("/load").json() == {"server_load": 0}
    card = client.get("/v1/models").json()["data"][0]
    assert (card["id"], card["root"], card["parent"]) == ("tiny", "SmolLM2-135M-Instruct", None)
    assert card["max_model_len"] == 2048
    assert client.get("/v1/models/tiny").json() == card
    assert client.get("/v1/models/other").status_code == 404


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (None, "SmolLM2-135M-Instruct"),
        ("org/model", "org/model"),
        ("/home/someone/models/Tiny-1B", "Tiny-1B"),
        ("models/tiny.Q4_0.gguf", "tiny.Q4_0"),
    ],
)
def test_the_model_s_name_shows_no_path(model: str | None, name: str):
    assert root_model_name(EngineConfig(model=model)) == name


def test_a_draining_server_refuses_work_and_answers_probes():
    lifecycle = Lifecycle()
    engine = FakeEngine(script=[])
    client = Client(create_app(engine, lifecycle))
    assert client.post("/v1/completions", {"prompt": "a"}).status_code == 200
    lifecycle.draining = True
    response = client.post("/v1/completions", {"prompt": "a"})
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) > 0
    assert client.get("/health").status_code == 503
    assert client.get("/ping").status_code == 200
    assert client.get("/metrics").status_code == 200
    assert lifecycle.num_active == 0
