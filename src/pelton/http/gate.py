"""What stands before every route: API keys, draining, and the count of requests in flight."""

import asyncio
import hmac
import time
from collections.abc import Iterable, Iterator
from http import HTTPStatus

from starlette.types import ASGIApp, Receive, Scope, Send

from pelton.errors import RequestError
from pelton.http.anthropic.errors import error_body_for
from pelton.http.errors import error_response
from pelton.http.metrics import ServerMetrics

OPEN_PATHS = frozenset({"/health", "/ping", "/version"})  # for probes: no key, not counted, served while draining
_OBSERVED_PATHS = OPEN_PATHS | {"/metrics", "/load"}
TENANT = "pelton.tenant"  # the scope's entry that tells clients with different keys apart
ARRIVAL = "pelton.arrival"  # the scope's entry with the request's time.perf_counter()


class Lifecycle:
    """Whether the server still takes requests, and how many requests and choices are in flight."""

    def __init__(self) -> None:
        self.draining = False
        self.num_active = 0
        self.num_choices = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def begin(self) -> None:
        self.num_active += 1
        self._idle.clear()

    def end(self) -> None:
        self.num_active -= 1
        if not self.num_active:
            self._idle.set()

    async def wait_idle(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the last request in flight; whether it has ended."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout)
        except TimeoutError:
            return False
        return True


class Gate:
    """Pure ASGI middleware: 401 without a valid key, 503 while draining, else the request counts as in flight."""

    def __init__(
        self, app: ASGIApp, *, api_keys: tuple[str, ...], lifecycle: Lifecycle, metrics: ServerMetrics
    ) -> None:
        self._app = app
        self._keys = tuple(key.encode() for key in api_keys)
        self._lifecycle = lifecycle
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        tenant = self._tenant(scope)
        if tenant is None:
            error = RequestError("Missing or wrong API key", status=HTTPStatus.UNAUTHORIZED)
            await self._refuse(error, {"WWW-Authenticate": "Bearer"}, scope, receive, send)
            return
        scope[TENANT] = tenant
        scope[ARRIVAL] = time.perf_counter()
        if scope["path"] in _OBSERVED_PATHS:
            await self._app(scope, receive, send)
        elif self._lifecycle.draining:
            error = RequestError("The server is shutting down", status=HTTPStatus.SERVICE_UNAVAILABLE)
            await self._refuse(error, {"Connection": "close"}, scope, receive, send)
        else:
            self._lifecycle.begin()
            try:
                await self._app(scope, receive, send)
            finally:
                self._lifecycle.end()

    async def _refuse(
        self, error: RequestError, headers: dict[str, str], scope: Scope, receive: Receive, send: Send
    ) -> None:
        self._metrics.num_errors[error.status] += 1
        response = error_response(error, error_body_for(scope["path"]))
        response.headers.update(headers)
        await response(scope, receive, send)

    def _tenant(self, scope: Scope) -> str | None:
        """The position of the client's key, "" where no key is needed, None for a client without a valid one."""
        if not self._keys:
            return ""
        given = list(_given_keys(scope["headers"]))
        # Every key is compared, so that the time tells neither whether nor where one matches.
        matches = [sum(hmac.compare_digest(value, key) for value in given) > 0 for key in self._keys]
        return str(matches.index(True)) if any(matches) else None


def _given_keys(headers: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes]:
    """What a client offers as a key: in the OpenAI API's header, and in Anthropic's."""
    for name, value in headers:
        if name == b"authorization":
            scheme, _, key = value.partition(b" ")
            if scheme.lower() == b"bearer":
                yield key.strip()
        elif name == b"x-api-key":
            yield value.strip()
