"""Hermes and Qwen: <tool_call>{"name": "f", "arguments": {...}}</tool_call>."""

from pelton.http.tools.json_calls import JsonCallReader, Outcome
from pelton.http.tools.reader import Steps

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class HermesReader(JsonCallReader):
    """A mark that no call follows is text. What stands between a call's arguments and its closing mark is ignored."""

    marks = (OPEN, CLOSE)

    def _turn(self) -> Steps[None]:
        yield
        is_open = yield from self._text(OPEN)
        while is_open:
            yield
            yield from self._skip()
            outcome = (yield from self._object_call()) if self._char == "{" else Outcome.NONE
            if outcome is Outcome.NONE:
                self._release_before()
                is_open = yield from self._text(OPEN)
            else:
                is_open = (yield from self._after_call()) or (yield from self._text(OPEN))

    def _after_call(self) -> Steps[bool]:
        """Go behind the closing mark; True if the mark of another call came in its place."""
        tail = self._char
        while self._char:
            yield
            tail = (tail + self._char)[-len(CLOSE) :]
            if tail.endswith(OPEN):
                self._drop()
                return True
            if tail == CLOSE:
                break
        self._drop()
        if self._char:
            yield
        return False
