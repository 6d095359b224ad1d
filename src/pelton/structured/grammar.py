"""Grammars for what a client may ask for, as the text that llguidance reads.

JSON is written compactly, as Python's json.dumps does by default: one space after a comma and after a colon, none
elsewhere. So a model cannot pad an answer with white space.

The functions check what can be seen without the grammar library; GrammarChecker then compiles the text. They are cheap
to import. All raise RequestError, which names the field given as `param`.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from pelton.errors import RequestError
from pelton.structured.json_schema import prepare_schema
from pelton.structured.json_values import shown
from pelton.structured.limits import (
    MAX_CHOICES,
    MAX_CHOICES_BYTES,
    MAX_GRAMMAR_BYTES,
    MAX_SCHEMA_BYTES,
    MAX_TAGS,
)
from pelton.structured.regex import check_regex, lark_regex, portable_regex

_JSON_STYLE = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    # No numbered escapes: every string is written in one way, so that no name can stand for another one in disguise.
    "json_allowed_escapes": 'nrbtf\\"',
}

_STRING_OR_REPEAT = re.compile(r'"(?:\\.|[^"\\\n])*"|\{\s*(\d*)\s*(?:,\s*(\d*)\s*)?\}|~\s*(\d+)(?:\s*\.\.\s*(\d+))?')


def json_schema_grammar(schema: object, param: str) -> str:
    """Any JSON value that validates against the schema: an object, or a string that holds one as JSON.

    See prepare_schema for what is refused. Without additionalProperties, further properties are allowed, as JSON Schema
    says.
    """
    return f"start: {embedded_schema(schema, param)}"


def json_object_grammar() -> str:
    """Any JSON object."""
    return json_schema_grammar({"type": "object"}, "")


def embedded_schema(schema: object, param: str) -> str:
    """The schema as a term of a Lark rule: `%json {...}`."""
    if isinstance(schema, str):
        schema = _parsed(schema, param)
    prepared = prepare_schema(schema, param)
    if prepared is False:
        raise RequestError(f"{param}: nothing validates against this schema", param=param)
    styled: dict[str, Any] = {**(prepared if isinstance(prepared, dict) else {}), "x-guidance": _JSON_STYLE}
    text = json.dumps(styled, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return f"%json {text}"


def regex_grammar(regex: object, param: str) -> str:
    r"""Text that matches the expression as a whole. `.` matches all but a newline; \d, \w and \s see portable_regex."""
    if not isinstance(regex, str) or not regex:
        raise RequestError(f"{param} must be a regular expression, got {shown(regex)}", param=param)
    check_regex(regex, param)
    return f"start: {lark_regex(portable_regex(regex))}"


def choice_grammar(choices: object, param: str) -> str:
    """One of the strings."""
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise RequestError(f"{param} must be a non-empty list of strings, got {shown(choices)}", param=param)
    if len(choices) > MAX_CHOICES:
        raise RequestError(f"{param}: at most {MAX_CHOICES} choices, got {len(choices)}", param=param)
    if sum(map(len, choices)) > MAX_CHOICES_BYTES:
        raise RequestError(f"{param}: the choices are longer than {MAX_CHOICES_BYTES} characters together", param=param)
    # As one terminal they make one automaton; as alternatives of a rule each would be an item of the parser.
    return "start: CHOICE\nCHOICE: " + " | ".join(lark_string(choice) for choice in dict.fromkeys(choices))


def lark_grammar(text: object, param: str) -> str:
    """A Lark grammar in llguidance's dialect, as it is. It begins at the rule `start`."""
    if not isinstance(text, str) or not text.strip():
        raise RequestError(f"{param} must be a grammar, got {shown(text)}", param=param)
    if len(text) > MAX_GRAMMAR_BYTES:
        raise RequestError(f"{param} is longer than {MAX_GRAMMAR_BYTES} characters", param=param)
    return text


def most_repeats(lark: str) -> int:
    """The largest count of a repetition in a Lark grammar, `{n}`, `{m,n}`, `~ n` or `~ m..n`, in its regexes too."""
    counts = [count for match in _STRING_OR_REPEAT.finditer(lark) for count in match.groups() if count]
    return max((int(count) if len(count) < 9 else 10**9 for count in counts), default=0)


def structural_tag_grammar(structures: object, triggers: object, param: str) -> str:
    """Free text in which a trigger begins one of the structures: its `begin`, JSON of its `schema`, its `end`.

    Args:
        structures: a list of {"begin": str, "schema": object, "end": str}.
        triggers: strings; each `begin` starts with at least one of them.
    """
    tags = _structures(structures, f"{param}.structures")
    if not isinstance(triggers, list) or not triggers or not all(isinstance(each, str) and each for each in triggers):
        raise RequestError(f"{param}.triggers must be a list of non-empty strings", param=f"{param}.triggers")
    rules = ["TEXT: /(?s:.*)/"]
    names: list[str] = []
    for index, trigger in enumerate(dict.fromkeys(triggers)):
        bodies = [
            f"{_optional_string(begin.removeprefix(trigger))}{schema}{_optional_string(end, before=' ')}"
            for begin, schema, end in tags
            if begin.startswith(trigger)
        ]
        if not bodies:
            raise RequestError(
                f"{param}.triggers: no structure begins with {shown(trigger)}", param=f"{param}.triggers"
            )
        names.append(f"tag_{index}")
        rules += [
            f"trigger_{index}[lazy]: TEXT {lark_string(trigger)}",
            f"tag_{index}: trigger_{index} ({' | '.join(bodies)})",
        ]
    for begin, _, _ in tags:
        if not any(begin.startswith(trigger) for trigger in triggers):
            raise RequestError(
                f"{param}.structures: {shown(begin)} begins with no trigger", param=f"{param}.structures"
            )
    return "\n".join([f"start: ({' | '.join(names)})* TEXT", *rules])


def lark_string(text: str) -> str:
    """The text as a Lark literal."""
    return json.dumps(text, ensure_ascii=False)


def _parsed(schema: str, param: str) -> object:
    if len(schema) > MAX_SCHEMA_BYTES:
        raise RequestError(f"{param} is longer than {MAX_SCHEMA_BYTES} characters", param=param)
    try:
        return json.loads(schema)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{param} is not valid JSON: {error}", param=param) from None


def _structures(structures: object, param: str) -> Sequence[tuple[str, str, str]]:
    """(begin, the schema as a Lark term, end) of each."""
    if not isinstance(structures, list) or not structures or len(structures) > MAX_TAGS:
        raise RequestError(f"{param} must be a list of 1 to {MAX_TAGS} objects", param=param)
    tags: list[tuple[str, str, str]] = []
    for index, structure in enumerate(structures):
        match structure:
            case {"begin": str() as begin, "schema": schema, "end": str() as end}:
                tags.append((begin, embedded_schema(schema, f"{param}[{index}].schema"), end))
            case _:
                raise RequestError(f"{param}[{index}] needs `begin`, `schema` and `end`", param=f"{param}[{index}]")
    return tags


def _optional_string(text: str, before: str = "") -> str:
    return f"{before}{lark_string(text)} " if text else ""
