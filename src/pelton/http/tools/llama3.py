"""Llama 3: {"name": "f", "parameters": {...}}, maybe after <|python_tag|>, with ";" between several calls."""

from pelton.http.tools.json_calls import JsonCallReader, Outcome
from pelton.http.tools.reader import Steps

TAG = "<|python_tag|>"


class Llama3Reader(JsonCallReader):
    """Calls begin the turn, follow the tag or another call; anywhere else JSON is text. Unknown names are text too."""

    marks = (TAG,)

    def _turn(self) -> Steps[None]:
        yield
        yield from self._skip()
        while True:
            while self._char == "{":
                outcome = yield from self._object_call(known_names=True)
                if outcome is Outcome.NONE:
                    break
                if outcome is Outcome.BROKEN:
                    yield from self._ignore_rest()
                    return
                yield
                yield from self._separator()
            self._release_before()
            if not (yield from self._text(TAG)):
                return
            yield
            yield from self._skip()

    def _separator(self) -> Steps[None]:
        """White space between calls belongs to them; before text it is text."""
        yield from self._skip()
        if self._char in (";", ","):
            yield
            yield from self._skip()
            self._drop_before()
