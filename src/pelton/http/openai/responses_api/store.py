"""Responses that are kept for their clients, in memory, apart for each API key. The least recently used go first."""

from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

import msgspec

from pelton.errors import RequestError
from pelton.http.openai.responses_api.event_log import EventLog
from pelton.http.openai.responses_api.shapes import OutputItem, OutputMessage, OutputText, Response
from pelton.types import JsonObject

MAX_RESPONSES = 1000
MAX_BYTES = 64 * 2**20

_encode = msgspec.json.Encoder().encode
_decode_items = msgspec.json.Decoder(list[JsonObject]).decode


class Running(Protocol):
    """A response under way, apart from any connection."""

    @property
    def response(self) -> Response: ...

    def cancel(self) -> None:
        """End it early and keep what there is."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """A response as JSON, and the JSON of its conversation: the items before it and its own.

    `running` while the response changes: then `body` is empty, and its own items are missing. `log` holds the events
    of one that was made in the background as a stream. `output_ids` are the ids of its own items.
    """

    body: bytes
    items: bytes
    output_ids: tuple[str, ...] = ()
    num_input_items: int
    background: bool
    log: EventLog | None = None
    running: Running | None = None

    @property
    def num_bytes(self) -> int:
        log = 0 if self.log is None else self.log.num_bytes + len(self.body)  # its last event holds the body as well
        return len(self.body) + len(self.items) + log

    def json(self) -> bytes:
        return self.body if self.running is None else _encode(self.running.response)

    def conversation(self) -> list[JsonObject]:
        return _decode_items(self.items)


def conversation_json(items: Sequence[JsonObject], output: Sequence[OutputItem]) -> bytes:
    """Items and output items as later responses read them: without logprobs."""
    return _encode([*items, *map(_without_logprobs, output)])


def _without_logprobs(item: OutputItem) -> OutputItem:
    if not isinstance(item, OutputMessage):
        return item
    return msgspec.structs.replace(item, content=[OutputText(text=part.text) for part in item.content])


class ResponseStore:
    """`max_responses` and `max_bytes` bound what is kept for one tenant. What still runs is kept beyond that."""

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._shelves: defaultdict[str, _Shelf] = defaultdict(_Shelf)

    def has(self, tenant: str, response_id: str) -> bool:
        return response_id in self._shelves[tenant].responses

    def get(self, tenant: str, response_id: str) -> StoredResponse:
        """RequestError 404 for what the tenant has not, or no more."""
        responses = self._shelves[tenant].responses
        stored = responses.get(response_id)
        if stored is None:
            raise RequestError(
                f"Response with id {response_id[:256]!r} not found.", param="response_id", status=HTTPStatus.NOT_FOUND
            )
        responses.move_to_end(response_id)
        return stored

    def item(self, tenant: str, item_id: str) -> JsonObject | None:
        """An item that a response of the tenant has put out."""
        shelf = self._shelves[tenant]
        response_id = shelf.response_ids.get(item_id)
        if response_id is None:
            return None
        return next((item for item in shelf.responses[response_id].conversation() if item["id"] == item_id), None)

    def keep(self, tenant: str, response_id: str, stored: StoredResponse) -> None:
        """Keep it, in the place of an earlier state of it."""
        shelf = self._shelves[tenant]
        shelf.remove(response_id)
        shelf.add(response_id, stored)
        for oldest in list(shelf.responses):
            if len(shelf.responses) <= self._max_responses and shelf.num_bytes <= self._max_bytes:
                break
            if shelf.responses[oldest].running is None:
                shelf.remove(oldest)

    def remove(self, tenant: str, response_id: str) -> None:
        self._shelves[tenant].remove(response_id)


class _Shelf:
    """What is kept for one tenant, by id, the least recently used first."""

    def __init__(self) -> None:
        self.responses: OrderedDict[str, StoredResponse] = OrderedDict()
        self.response_ids: dict[str, str] = {}  # by the id of an item that was put out
        self.num_bytes = 0
        self._sizes: dict[str, int] = {}  # as they were when counted: a log grows

    def add(self, response_id: str, stored: StoredResponse) -> None:
        self.responses[response_id] = stored
        self._sizes[response_id] = stored.num_bytes
        self.num_bytes += stored.num_bytes
        self.response_ids.update(dict.fromkeys(stored.output_ids, response_id))

    def remove(self, response_id: str) -> None:
        stored = self.responses.pop(response_id, None)
        if stored is not None:
            self.num_bytes -= self._sizes.pop(response_id)
            for item_id in stored.output_ids:
                del self.response_ids[item_id]
