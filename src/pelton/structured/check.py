"""From constraint to checked grammar. Runs in the grammar checker's process: importing the grammar library takes long,
and a grammar that is nested deep enough ends the process that compiles it."""

import re
import time
from collections.abc import Mapping
from typing import assert_never

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import any_to_lark

from pelton.errors import RequestError
from pelton.structured.grammar import (
    choice_grammar,
    json_object_grammar,
    json_schema_grammar,
    lark_grammar,
    most_repeats,
    regex_grammar,
    structural_tag_grammar,
)
from pelton.structured.limits import MAX_COMPILED_BYTES, MAX_MASK_SECONDS, MAX_REPEAT, PARSER_LIMITS
from pelton.structured.messages import Constraint, Vocabulary


class Checker:
    """Compiles against a vocabulary of single bytes and the special tokens of the model's, at the model's ids.

    What a grammar accepts does not depend on how a vocabulary cuts text into tokens; whether it can be compiled depends
    on the special tokens and ids that it names.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokenizer = LLTokenizer(TokenizerWrapper(_Bytes(vocabulary)))
        self._limits = LLParserLimits(**PARSER_LIMITS)

    def checked(self, constraint: Constraint) -> str:
        """The grammar as llguidance reads it. Raises RequestError with the reason why there is none."""
        grammar = _grammar_text(constraint)
        reason = self._reason_against(grammar)
        if reason is not None and constraint.kind != "grammar":
            reason = _ITS_PLACE.sub("", reason)  # in a grammar that the client has not seen
        if reason is not None:
            raise RequestError(f"{constraint.param}: {reason}", param=constraint.param)
        return grammar

    def _reason_against(self, grammar: str) -> str | None:
        if len(grammar) > MAX_COMPILED_BYTES:
            return f"the grammar made of it is larger than {MAX_COMPILED_BYTES} bytes"
        matcher = LLMatcher(self.tokenizer, grammar, log_level=0, limits=self._limits)
        if matcher.is_error():
            return _said(matcher.get_error())
        start = time.thread_time()
        mask = matcher.compute_bitmask()
        if time.thread_time() - start > MAX_MASK_SECONDS:
            return f"it is too complex: the first token alone takes over {MAX_MASK_SECONDS} s"
        if matcher.is_error():
            return _said(matcher.get_error())
        return None if any(mask) or matcher.is_accepting() else _NOTHING


class _Bytes:
    """A tokenizer as llguidance wants one."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        free = (index for index in range(vocabulary.size + 256) if index not in vocabulary.special)
        self._ids = [next(free) for _ in range(256)]
        self.tokens = [b""] * max(vocabulary.size, max(self._ids) + 1)
        for byte, token_id in enumerate(self._ids):
            self.tokens[token_id] = bytes([byte])
        for token_id, text in vocabulary.special.items():
            self.tokens[token_id] = text.encode()
        self.special_token_ids = sorted(vocabulary.special)
        self.eos_token_id = vocabulary.eos_token_ids[0] if vocabulary.eos_token_ids else self.special_token_ids[0]

    def __call__(self, text: bytes) -> list[int]:
        return [self._ids[byte] for byte in text]


def _grammar_text(constraint: Constraint) -> str:
    value, param = constraint.value, constraint.param
    match constraint.kind:
        case "json":
            return json_schema_grammar(value, param)
        case "json_object":
            return json_object_grammar()
        case "regex":
            return regex_grammar(value, param)
        case "choice":
            return choice_grammar(value, param)
        case "grammar":
            return _any_grammar(lark_grammar(value, param), param)
        case "structural_tag":
            return _structural_tag(value, param)
        case "compiled":
            return value
        case kind:
            assert_never(kind)


def _any_grammar(text: str, param: str) -> str:
    """Lark as it is, GBNF and EBNF (`root ::= ...`) as Lark."""
    try:
        lark = any_to_lark(text)
    except Exception as error:  # noqa: BLE001 (the converter raises what it likes about a text it cannot read)
        raise RequestError(f"{param}: the grammar cannot be read: {_said(str(error))}", param=param) from None
    if most_repeats(lark) > MAX_REPEAT:
        raise RequestError(f"{param}: it repeats a part more than {MAX_REPEAT} times", param=param)
    return lark


def _structural_tag(value: object, param: str) -> str:
    if not isinstance(value, Mapping) or "structures" not in value:
        raise RequestError(f"{param} needs `structures` and `triggers`", param=param)
    return structural_tag_grammar(value["structures"], value.get("triggers"), param)


def _said(error: str) -> str:
    """The library's words on one line of at most 500 characters."""
    words = " ".join(error.partition("<state>")[0].split())[:2000]
    for cause, said in _SAID_BETTER.items():
        if cause in words:
            return said
    return words[:500]


_ITS_PLACE = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: )?| \d+ \| .*$")
_NOTHING = "no text can satisfy it"
_SAID_BETTER = {
    "oneOf constraints are not supported": "the keyword `oneOf` is supported where its options exclude each other by "
    "their types or by a required property that is constant; use `anyOf` otherwise",
    "min/maxProperties only supported": "the keywords `minProperties` and `maxProperties` are supported where all "
    "`properties` are `required`",
    "circular references with sibling keys": "the keyword `$ref` is not supported beside other keywords where it leads "
    "back to itself",
    "NoExtensionBias": _NOTHING,
}
