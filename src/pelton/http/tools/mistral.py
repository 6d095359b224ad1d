"""Mistral: [TOOL_CALLS] [{"name": "f", "arguments": {...}}, ...], and newer [TOOL_CALLS]f[ARGS]{...}[TOOL_CALLS]g..."""

from pelton.http.tools.json_calls import JsonCallReader, Outcome
from pelton.http.tools.reader import NAME_CHARACTERS, SPACES, Steps, mistral_call_id

MARK, ARGUMENTS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"


class MistralReader(JsonCallReader):
    """A mark that no call follows is text. After calls that go wrong, the rest of the turn is ignored."""

    marks = (MARK, ARGUMENTS, CALL_ID)
    new_id = staticmethod(mistral_call_id)

    def _turn(self) -> Steps[None]:
        yield
        while (yield from self._text(MARK)):
            yield
            yield from self._skip()
            if self._char == "[":
                outcome = yield from self._list()
            elif self._char == "{":
                outcome = yield from self._object_call()
            else:
                outcome = yield from self._named_call()
            if outcome is Outcome.NONE:
                self._release_before()
            elif outcome is Outcome.BROKEN:
                yield from self._ignore_rest()
            else:
                yield

    def _list(self) -> Steps[Outcome]:
        """Calls as objects of a list, up to its closing bracket."""
        has_calls = False
        yield
        while True:
            yield from self._skip(SPACES | {","})
            if self._char == "]" and has_calls:
                self._drop()
                return Outcome.CALL
            outcome = (yield from self._object_call()) if self._char == "{" else Outcome.NONE
            if outcome is not Outcome.CALL:
                return Outcome.BROKEN if has_calls else outcome
            has_calls = True
            yield

    def _named_call(self) -> Steps[Outcome]:
        """A name, maybe an id, maybe [ARGS], and the arguments up to their closing brace."""
        name = yield from self._name()
        yield from self._skip()
        if self._char == "[":
            yield
            is_id = self._char == CALL_ID[1]
            if not (yield from self._literal((CALL_ID if is_id else ARGUMENTS)[1:])):
                return Outcome.NONE
            if is_id:
                yield from self._skip(NAME_CHARACTERS | SPACES)
                if not (yield from self._literal(ARGUMENTS)):
                    return Outcome.NONE
            yield from self._skip()
        if not name or self._char != "{":
            return Outcome.NONE
        self._start_call(name)
        return Outcome.CALL if (yield from self._arguments()) else Outcome.BROKEN
