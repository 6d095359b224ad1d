"""Parameters of a query string."""

from collections.abc import Sequence

from starlette.requests import Request

from pelton.errors import RequestError


class QueryReader:
    """Reads parameters; each method gives None where the parameter is missing, and RequestError where it is wrong."""

    def __init__(self, request: Request) -> None:
        self._values = request.query_params

    def text(self, name: str) -> str | None:
        return self._values.get(name)

    def flag(self, name: str) -> bool | None:
        value = self.choice(name, ("true", "false"))
        return None if value is None else value == "true"

    def choice(self, name: str, known: Sequence[str]) -> str | None:
        value = self._values.get(name)
        if value is not None and value not in known:
            raise RequestError(f"{name} must be {' or '.join(known)}, got {value[:50]!r}", param=name)
        return value

    def integer(self, name: str, low: int, high: int) -> int | None:
        value = self._values.get(name)
        if value is None:
            return None
        number = int(value) if value.isascii() and value.removeprefix("-").isdecimal() and len(value) <= 20 else None
        if number is None or not low <= number <= high:
            raise RequestError(f"{name} must be an integer from {low} to {high}, got {value[:50]!r}", param=name)
        return number
