"""Events of a response that runs apart from any connection: kept, and passed on to whoever listens."""

from pelton.http.sse import Outbox


class EventLog:
    """`num_bytes` is the size of what it keeps."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._events: list[bytes] = []  # by sequence number
        self._listeners: list[Outbox] = []
        self._has_ended = False

    def put(self, event: bytes) -> None:
        self._events.append(event)
        self.num_bytes += len(event)
        for listener in self._listeners:
            listener.put(event)

    def end(self) -> None:
        """No more events."""
        self._has_ended = True
        for listener in self._listeners:
            listener.end()
        self._listeners.clear()

    def listen(self, outbox: Outbox, *, after: int) -> "Listening":
        """Give `outbox` the events behind sequence number `after`, those of now at once, until the last one."""
        for event in self._events[after + 1 :]:
            outbox.put(event)
        if self._has_ended:
            outbox.end()
        else:
            self._listeners.append(outbox)
        return Listening(self._listeners, outbox)


class Listening:
    """`close` ends it, while the response goes on."""

    def __init__(self, listeners: list[Outbox], outbox: Outbox) -> None:
        self._listeners = listeners
        self._outbox = outbox

    def close(self) -> None:
        if self._outbox in self._listeners:
            self._listeners.remove(self._outbox)
