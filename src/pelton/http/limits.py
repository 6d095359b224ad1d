"""What one API key may ask for: requests and tokens a minute, requests at once; and until when a request may run."""

import asyncio
import functools
import math
from collections import defaultdict
from collections.abc import Callable
from http import HTTPStatus

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pelton.config import EngineConfig
from pelton.errors import RequestError
from pelton.http.anthropic.errors import error_body_for
from pelton.http.body import IGNORED
from pelton.http.errors import error_response
from pelton.http.gate import TENANT
from pelton.http.metrics import ServerMetrics

DEADLINE = "pelton.deadline"  # the scope's entry with the request's Deadline, None without one
SPEND = "pelton.spend"  # the scope's entry with a function that takes the tokens that the request has cost
CARRY_ON = "pelton.carry_on"  # the scope's entry with a function that counts work which goes on after the answer
TIMEOUT_HEADER = "x-request-timeout"
IGNORED_HEADER = "x-pelton-ignored-fields"
HEADERS = (
    *("retry-after", IGNORED_HEADER),
    *(f"x-ratelimit-{what}-{unit}" for what in ("limit", "remaining", "reset") for unit in ("requests", "tokens")),
)
MAX_BODIES_BYTES = 256 * 2**20  # of all large bodies that requests under way have sent
_SMALL_BODY_BYTES = 2**20
_MAX_SECONDS = 7 * 86400.0

Clock = Callable[[], float]


class TokenBucket:
    """Holds up to `per_minute` units and refills evenly; `clock` is in seconds. Taking may overdraw it."""

    def __init__(self, per_minute: int, clock: Clock) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._level = float(per_minute)
        self._time = clock()

    @property
    def level(self) -> float:
        now = self._clock()
        self._level = min(self.per_minute, self._level + (now - self._time) * self.per_minute / 60)
        self._time = now
        return self._level

    def take(self, amount: int) -> None:
        self._level = self.level - amount

    def seconds_until(self, level: float) -> float:
        return max(0.0, (level - self.level) * 60 / self.per_minute)


class KeyLimits:
    """The state of one API key. Without a limit nothing is counted for it."""

    def __init__(self, config: EngineConfig, clock: Clock) -> None:
        self._clock = clock
        self._max_running = config.max_concurrent_requests
        self._requests = TokenBucket(config.max_requests_per_minute, clock) if config.max_requests_per_minute else None
        self._tokens = TokenBucket(config.max_tokens_per_minute, clock) if config.max_tokens_per_minute else None
        self._num_running = 0
        self._mean_seconds = 1.0  # of a request, the last ones weigh most

    def begin(self) -> None:
        """Count a request; every begun one must `end`.

        Raises:
            RequestError: 429 with the seconds after which the limit leaves room. Nothing was counted.
        """
        if self._max_running is not None and self._num_running >= self._max_running:
            seconds = self._mean_seconds / self._max_running
            raise _too_many(f"{self._max_running} requests of this API key run at once, the most allowed", seconds)
        for bucket, what in ((self._requests, "requests"), (self._tokens, "tokens")):
            if bucket is not None and bucket.level < 1:
                message = f"The limit of {bucket.per_minute} {what} a minute for this API key is reached"
                raise _too_many(message, bucket.seconds_until(1))
        if self._requests is not None:
            self._requests.take(1)
        self._num_running += 1

    def carry_on(self) -> None:
        """Count work that a request has begun and that outlives it; it must `end` as well."""
        self._num_running += 1

    def end(self, seconds: float) -> None:
        self._num_running -= 1
        self._mean_seconds += (seconds - self._mean_seconds) / 8

    def spend(self, num_tokens: int) -> None:
        """Take tokens that a request has cost; the budget of the next ones is smaller, down to none."""
        if self._tokens is not None:
            self._tokens.take(num_tokens)

    def headers(self) -> dict[str, str]:
        """The x-ratelimit headers of OpenAI, of the limits that are set."""
        headers: dict[str, str] = {}
        for bucket, what in ((self._requests, "requests"), (self._tokens, "tokens")):
            if bucket is not None:
                headers[f"x-ratelimit-limit-{what}"] = str(bucket.per_minute)
                headers[f"x-ratelimit-remaining-{what}"] = str(max(0, math.floor(bucket.level)))
                headers[f"x-ratelimit-reset-{what}"] = show_duration(bucket.seconds_until(bucket.per_minute))
        return headers


def show_duration(seconds: float) -> str:
    """As OpenAI writes it: 120ms, 7.66s, 6m0s."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds * 100) / 100, 60)
    return f"{int(minutes)}m{rest:g}s" if minutes else f"{rest:.2f}".rstrip("0").rstrip(".") + "s"


def _too_many(message: str, seconds: float) -> RequestError:
    return RequestError(
        f"{message}; try again in {max(1, math.ceil(seconds))} s",
        status=HTTPStatus.TOO_MANY_REQUESTS,
        retry_after=seconds,
    )


class Deadline:
    """When a request has to end: `at` in seconds of the event loop's clock.

    The request's task is cancelled then, until an answer begins or `take_over` is called: from there on the caller must
    see to it.
    """

    def __init__(self, seconds: float, timeout: asyncio.Timeout) -> None:
        self.at = asyncio.get_running_loop().time() + seconds
        self._seconds = seconds
        self._timeout: asyncio.Timeout | None = timeout

    def take_over(self) -> None:
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(None)
            self._timeout = None

    def error(self) -> RequestError:
        return RequestError(
            f"The request was not finished after {self._seconds:g} s, the time allowed",
            status=HTTPStatus.REQUEST_TIMEOUT,
        )


class Limits:
    """Shared by the routes with a body: the limits of every key, and the bodies held at once."""

    def __init__(self, config: EngineConfig, metrics: ServerMetrics, clock: Clock) -> None:
        self.metrics = metrics
        self.max_seconds = config.request_timeout
        self.num_body_bytes = 0
        self._of_key = defaultdict[str, KeyLimits](lambda: KeyLimits(config, clock))
        self.clock = clock

    def of(self, tenant: str) -> KeyLimits:
        return self._of_key[tenant]


class Limiter:
    """Pure ASGI middleware of one route: what `limits` does not allow is answered with a 429 or 408."""

    def __init__(self, app: ASGIApp, *, limits: Limits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        key = self._limits.of(scope[TENANT])
        scope[DEADLINE] = None

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                if scope[DEADLINE] is not None:
                    scope[DEADLINE].take_over()
                headers = MutableHeaders(scope=message)
                headers.update(key.headers())
                if scope.get(IGNORED):
                    headers[IGNORED_HEADER] = scope[IGNORED]
            await send(message)

        try:
            await self._limited(key, scope, receive, send_with_headers)
        except RequestError as error:
            self._limits.metrics.num_errors[error.status] += 1
            await error_response(error, error_body_for(scope["path"]))(scope, receive, send_with_headers)

    async def _limited(self, key: KeyLimits, scope: Scope, receive: Receive, send: Send) -> None:
        seconds = self._seconds_allowed(Headers(scope=scope))
        key.begin()
        started = self._limits.clock()
        body = _BodyCount(self._limits, receive)
        scope[SPEND] = key.spend
        scope[CARRY_ON] = functools.partial(self._carry_on, key)
        try:
            await _within(seconds, self._app, scope, body.receive, send)
        finally:
            body.release()
            key.end(self._limits.clock() - started)

    def _carry_on(self, key: KeyLimits) -> Callable[[], None]:
        """Count on; what is returned must be called when the work has ended."""
        key.carry_on()
        started = self._limits.clock()
        return lambda: key.end(self._limits.clock() - started)

    def _seconds_allowed(self, headers: Headers) -> float | None:
        """The shorter one of what the server and the client allow."""
        given = headers.get(TIMEOUT_HEADER)
        if given is None:
            return self._limits.max_seconds
        try:
            seconds = float(given)
        except ValueError:
            seconds = math.nan
        if not 0 < seconds <= _MAX_SECONDS:
            raise RequestError(
                f"The header X-Request-Timeout must be a number of seconds, at most {_MAX_SECONDS:g}, "
                f"got {given[:50]!r}"
            )
        return seconds if self._limits.max_seconds is None else min(seconds, self._limits.max_seconds)


async def _within(seconds: float | None, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Run the app; RequestError 408 when it was cancelled at its deadline."""
    if seconds is None:
        await app(scope, receive, send)
        return
    timeout = asyncio.timeout(seconds)
    deadline = scope[DEADLINE] = Deadline(seconds, timeout)
    try:
        async with timeout:
            await app(scope, receive, send)
            deadline.take_over()  # by whatever of the request goes on in the background
    except TimeoutError:
        if not timeout.expired():
            raise
        raise deadline.error() from None


class _BodyCount:
    """Counts the bytes of a large body while its request is under way; RequestError 429 when all have too many."""

    def __init__(self, limits: Limits, receive: Receive) -> None:
        self._limits = limits
        self._receive = receive
        self._num_bytes = 0
        self._num_counted = 0

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._num_bytes += len(message.get("body", b""))
            if self._num_bytes > _SMALL_BODY_BYTES:
                self._count()
        return message

    def _count(self) -> None:
        self._limits.num_body_bytes += self._num_bytes - self._num_counted
        self._num_counted = self._num_bytes
        if self._limits.num_body_bytes > MAX_BODIES_BYTES:
            raise RequestError("Too many large bodies at once; try again later", status=HTTPStatus.TOO_MANY_REQUESTS)

    def release(self) -> None:
        self._limits.num_body_bytes -= self._num_counted
        self._num_counted = 0
