"""docs/api.md: every request on the page works, and there is one for every route."""

import asyncio
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from pelton.http.app import ROUTES, create_app

from fakes import FakeEngine

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
HOST = "http://127.0.0.1:8000"


@dataclass
class Curl:
    """A curl command, read as curl reads it."""

    method: str = ""
    url: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    data: str | None = None

    @classmethod
    def parse(cls, command: str) -> "Curl":
        words = iter(shlex.split(command))
        assert next(words) == "curl"
        curl = cls()
        for word in words:
            match word:
                case "-X":
                    curl.method = next(words)
                case "-H":
                    name, _, value = next(words).partition(": ")
                    curl.headers[name] = value
                case "-d":
                    curl.data = next(words)
                case "-N":
                    pass
                case _:
                    assert word.startswith(f"{HOST}/"), word
                    curl.url = word
        curl.method = curl.method or ("GET" if curl.data is None else "POST")
        return curl


def commands() -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]


def test_every_request_of_the_page_works():
    async def run() -> None:
        transport = httpx.ASGITransport(app=create_app(FakeEngine(script=[72, 73], delay=0.01)))
        response_id = ""
        async with httpx.AsyncClient(transport=transport) as client:
            for command in commands():
                curl = Curl.parse(command.replace("$ID", response_id))
                response = await client.request(curl.method, curl.url, headers=curl.headers, content=curl.data)
                assert response.status_code == 200, f"{command}\n{response.text}"
                if curl.url == f"{HOST}/v1/responses":
                    response_id = response.json()["id"]

    asyncio.run(run())


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_every_route_is_on_the_page(route):
    pattern = re.compile(HOST + re.sub(r"{\w+(:path)?}", "[^/ ]+", route.path))
    curls = [Curl.parse(command) for command in commands()]
    assert any(curl.method == route.method and pattern.fullmatch(curl.url) for curl in curls)
