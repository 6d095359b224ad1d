"""ReasoningSplitter: <think> ... </think> at the beginning of a turn is reasoning; another parser reads the rest."""

from pelton.http.openai.parts import Part, Reasoning, TurnParser
from pelton.types import FinishReason

OPEN, CLOSE = MARKS = "<think>", "</think>"


class ReasoningSplitter:
    """A TurnParser in front of another one. White space around the reasoning belongs to its marks.

    Args:
        answer: reads what follows the reasoning.
        is_open: the prompt has opened the reasoning: the turn begins inside.
        is_shown: False leaves the reasoning out.
    """

    def __init__(self, answer: TurnParser, *, is_open: bool, is_shown: bool) -> None:
        self._answer = answer
        self._is_open = is_open
        self._is_shown = is_shown
        self._read = self._begin
        self._held = ""
        self._has_reasoning = False

    def push(self, text: str) -> list[Part]:
        return self._read(text) if text else []

    def finish(self) -> list[Part]:
        """A mark that is not complete is no mark. Reasoning may have taken the whole turn."""
        held, self._held = self._held, ""
        if self._read == self._reason or (self._read == self._begin and self._is_open):
            return [*self._reasoning(held.rstrip()), *self._answer.finish()]
        return [*(self._answer.push(held) if self._read == self._begin else ()), *self._answer.finish()]

    def finish_reason(self, reason: FinishReason) -> str:
        return self._answer.finish_reason(reason)

    def _begin(self, text: str) -> list[Part]:
        """Look for the opening mark, which a model may write even where the prompt has it."""
        self._held += text
        begun = self._held.lstrip()
        if len(begun) < len(OPEN) and OPEN.startswith(begun):
            return []
        held, self._held = self._held, ""
        if begun.startswith(OPEN):
            self._read = self._reason
            return self._reason(begun.removeprefix(OPEN))
        self._read = self._reason if self._is_open else self._answer.push
        return self._read(held)

    def _reason(self, text: str) -> list[Part]:
        self._held += text
        before, mark, after = self._held.partition(CLOSE)
        if mark:
            self._held = ""
            self._read = self._skip
            return [*self._reasoning(before.rstrip()), *self._skip(after)]
        certain = self._held[: _length_before(self._held, CLOSE)].rstrip()
        self._held = self._held[len(certain) :]
        return self._reasoning(certain)

    def _skip(self, text: str) -> list[Part]:
        """Leave out the white space between reasoning and answer."""
        text = text.lstrip()
        if not text:
            return []
        self._read = self._answer.push
        return self._answer.push(text)

    def _reasoning(self, text: str) -> list[Part]:
        if not self._has_reasoning:
            text = text.lstrip()
        if not text or not self._is_shown:
            return []
        self._has_reasoning = True
        return [Reasoning(text)]


def _length_before(text: str, mark: str) -> int:
    """Length of the text without the longest suffix that begins the mark."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:length]):
            return len(text) - length
    return len(text)
