"""Methods, paths and origins; /invocations, which stands for other routes."""

from dataclasses import replace

import pytest

from pelton.http.app import ROUTES

from fakes import Client, FakeEngine

MESSAGES = [{"role": "user", "content": "hi"}]
KEY = {"Authorization": "Bearer secret"}


@pytest.fixture
def engine() -> FakeEngine:
    engine = FakeEngine()
    engine.script = engine.ids("hello")
    return engine


@pytest.fixture
def client(engine: FakeEngine) -> Client:
    return Client.of(engine)


def test_every_path_names_its_methods(client: Client):
    methods: dict[str, set[str]] = {}
    for route in ROUTES:
        methods.setdefault(route.path.replace("{model:path}", "tiny"), set()).add(route.method)
    for path, known in methods.items():
        if "{" in path:
            continue
        response = client.request("PATCH", path)
        assert response.status_code == 405
        assert response.json()["error"]["message"] == "Method Not Allowed"
        allowed = {method.strip() for method in response.headers["allow"].split(",")}
        assert allowed == (known | {"HEAD"} if "GET" in known else known)


def test_heads_are_answered_like_gets(client: Client):
    for path in ("/health", "/ping", "/version", "/v1/models", "/metrics", "/openapi.json"):
        head, get = client.request("HEAD", path), client.get(path)
        assert (head.status_code, head.headers["content-type"] if get.content else "") == (
            200,
            get.headers["content-type"] if get.content else "",
        )


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/nope", "/v2/completions", "/docs/../nope", "/%00", "/v1/модель"])
def test_unknown_paths_are_404s_with_the_error_s_shape(client: Client, path: str):
    response = client.get(path)
    assert response.status_code == 404
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert response.json()["error"]["type"] == "NotFoundError"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "hi", "max_tokens": 5}),
        ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 5}),
    ],
)
def test_invocations_are_what_the_body_says(client: Client, path: str, body: dict[str, object]):
    answer, meant = client.post("/invocations", body).json(), client.post(path, body).json()
    for key in ("object", "choices", "usage"):
        assert answer[key] == meant[key]
    events, meant = (client.events(url, body) for url in ("/invocations", path))
    assert [event["choices"] for event in events] == [event["choices"] for event in meant]


@pytest.mark.parametrize(
    ("content", "status", "word"),
    [
        (b"{}", 400, "messages"),
        (b'{"foo": 1}', 400, "messages"),
        (b"[]", 400, "object"),
        (b"", 400, "JSON"),
        (b'{"prompt": ', 400, "JSON"),
        (b"\xff", 400, "JSON"),
        (b"[" * 1000, 400, "nested"),
        (b'{"prompt": ""}', 400, "empty"),
        (b'{"prompt": "a", "model": "b"}', 404, "does not exist"),
    ],
)
def test_invocations_refuse_what_fits_nowhere(client: Client, content: bytes, status: int, word: str):
    response = client.request("POST", "/invocations", content=content, headers={"Content-Type": "application/json"})
    assert response.status_code == status
    assert word in response.json()["error"]["message"]


def test_invocations_need_a_key_and_the_right_type(engine: FakeEngine):
    engine.config = replace(engine.config, api_key=("secret",))
    client = Client.of(engine)
    assert client.post("/invocations", {"prompt": "a"}).status_code == 401
    assert client.request("POST", "/invocations", content=b"{}", headers=KEY).status_code == 400
    assert client.post("/invocations", {"prompt": "a"}, headers=KEY).status_code == 200


ORIGIN = {"Origin": "https://app.example"}
PREFLIGHT = {**ORIGIN, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}


def test_without_allowed_origins_browsers_are_told_nothing(client: Client):
    assert client.request("OPTIONS", "/v1/completions", headers=PREFLIGHT).status_code == 405
    answer = client.post("/v1/completions", {"prompt": "a"}, headers=ORIGIN)
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("allowed", ["https://app.example", "*"])
def test_pages_of_allowed_origins_may_ask(engine: FakeEngine, allowed: str):
    engine.config = replace(engine.config, allowed_origins=(allowed,), api_key=("secret",))
    client = Client.of(engine)
    preflight = client.request("OPTIONS", "/v1/completions", headers=PREFLIGHT)  # browsers send no key with it
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == allowed
    assert "authorization" in preflight.headers["access-control-allow-headers"]
    answer = client.post("/v1/completions", {"prompt": "a"}, headers=ORIGIN | KEY)
    assert answer.headers["access-control-allow-origin"] == allowed
    assert "retry-after" in answer.headers["access-control-expose-headers"]
    refused = client.post("/v1/completions", {"prompt": "a"}, headers=ORIGIN)
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, allowed)


def test_pages_of_other_origins_may_not(engine: FakeEngine):
    engine.config = replace(engine.config, allowed_origins=("https://app.example",))
    client = Client.of(engine)
    other = {**PREFLIGHT, "Origin": "https://evil.example"}
    assert "access-control-allow-origin" not in client.request("OPTIONS", "/v1/completions", headers=other).headers
    answer = client.post("/v1/completions", {"prompt": "a"}, headers={"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in answer.headers
