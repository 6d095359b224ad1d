"""The grammar of a turn: calls that must be made, and what else constrains it, behind the model's reasoning."""

import functools
import json
import re
from collections.abc import Sequence
from typing import cast

import msgspec

from pelton.http.tools import reasoning
from pelton.http.tools.definitions import Tool, ToolUse
from pelton.http.tools.syntax import CallSyntax
from pelton.structured.grammar import embedded_schema, lark_string
from pelton.tokenizer import Tokenizer
from pelton.types import JsonObject

# Beside these a schema's `properties` are not all that it allows, or closing it could leave nothing.
_OPEN_KEYWORDS = frozenset(
    {
        *("additionalProperties", "patternProperties", "propertyNames", "unevaluatedProperties", "minProperties"),
        *("allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas", "dependentRequired", "$ref", "$dynamicRef"),
    }
)
_MAX_CACHED_BYTES = 8192  # of a schema
_MARKS = re.compile(r"(</?tool_call>|\[TOOL_CALLS\]|\[ARGS\]|</?think>)")


class TurnGrammar:
    """Writes one turn's grammar in llguidance's Lark. Marks that are special tokens of the model are named by id."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._rules: list[str] = []

    def of_turn(
        self, use: ToolUse, syntax: CallSyntax, *, has_reasoning: bool, is_open: bool, answer: str | None
    ) -> str | None:
        """The whole grammar; None where the turn is free.

        Args:
            answer: the grammar of an answer in the place of calls.
            has_reasoning: the turn may begin with reasoning, which the prompt has opened if `is_open`.

        Raises:
            RequestError: names the schema that is not supported.
        """
        if not use.tools and not has_reasoning:
            return answer
        body = self._body(use, syntax, answer)
        if body is None:
            return None
        prefix = self._reasoning(is_open=is_open) if has_reasoning else ""
        lark = "\n".join([f"start: {prefix}{body}", *self._rules])
        if answer is None:
            return lark
        # As a grammar of its own: its rules may have the same names.
        return json.dumps(
            {"grammars": [{"lark_grammar": lark}, {"name": "answer", "lark_grammar": answer}]}, ensure_ascii=False
        )

    def _body(self, use: ToolUse, syntax: CallSyntax, answer: str | None) -> str | None:
        if use.is_enforced:
            return self._calls(use, syntax)
        if answer is not None:
            return f"({self._calls(use, syntax)} | @answer)" if use.tools else "@answer"
        if syntax.trigger and any(tool.strict for tool in use.tools):
            return self._text_and_calls(use.tools, syntax)
        return None

    def _calls(self, use: ToolUse, syntax: CallSyntax) -> str:
        """Calls and nothing else: one, or at least one."""
        bodies = [
            self._terms(syntax.begin.replace("{name}", tool.name))
            + self._arguments(tool, is_free=not (use.is_enforced or tool.strict))
            for tool in use.tools
        ]
        end = self._terms(syntax.end)
        self._rules.append(f"call: ({' | '.join(bodies)}) {end}")
        more = f"({self._terms(syntax.separator)} call)*" if use.parallel else ""
        return f"{self._terms(syntax.opening)} call {more} {self._terms(syntax.closing)}"

    def _text_and_calls(self, tools: Sequence[Tool], syntax: CallSyntax) -> str:
        """Free text, in which what begins a call must go on as one."""
        bodies = [
            self._terms(syntax.begin.replace("{name}", tool.name).removeprefix(syntax.trigger))
            + self._arguments(tool, is_free=not tool.strict)
            for tool in tools
        ]
        self._rules += [
            *self._lazy("trigger", syntax.trigger),
            f"call: trigger ({' | '.join(bodies)}) {self._terms(syntax.end)}",
            "REST: /(?s:.*)/",
        ]
        return "call* REST"

    def _reasoning(self, *, is_open: bool) -> str:
        self._rules += [*self._lazy("reasoning", reasoning.CLOSE), r"GAP: /\n{1,2}/"]
        return "reasoning GAP? " if is_open else f"({self._terms(reasoning.OPEN)} reasoning GAP?)? "

    def _lazy(self, rule: str, mark: str) -> list[str]:
        """Rules for free text up to the first mark."""
        text = f"{rule.upper()}_TEXT"
        free = f"{text}: /(?s:.*)/"
        if self._tokenizer.special_id(mark) is None:
            return [free, f"{rule}[lazy]: {text} {lark_string(mark)}"]
        return [free, f"{rule}: {text} {self._terms(mark)}"]

    def _arguments(self, tool: Tool, *, is_free: bool) -> str:
        """What the tool's schema says, or any object."""
        schema = msgspec.json.encode({"type": "object"} if is_free else closed(tool.parameters))
        embedded = _embedded if len(schema) <= _MAX_CACHED_BYTES else _embedded.__wrapped__
        return embedded(schema, tool.param)

    def _terms(self, text: str) -> str:
        """Text as terms of a rule."""
        terms: list[str] = []
        for piece in cast("list[str]", _MARKS.split(text)):
            token_id = self._tokenizer.special_id(piece)
            if piece:
                terms.append(lark_string(piece) if token_id is None else f"<[{token_id}]>")
        return "".join(f"{term} " for term in terms)


@functools.lru_cache(maxsize=2048)
def _embedded(schema: bytes, param: str) -> str:
    """Kept, as an agent sends the same tools with every turn."""
    return embedded_schema(msgspec.json.decode(schema), param)


def closed(schema: JsonObject) -> JsonObject:
    """Arguments without properties that the schema does not name, as functions want them, where it leaves that open."""
    properties: object = schema.get("properties")
    required: object = schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list) or _OPEN_KEYWORDS & schema.keys():
        return schema
    if any(name not in properties for name in cast("list[object]", required)):
        return schema
    return {**schema, "additionalProperties": False}
