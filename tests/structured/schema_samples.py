"""Random JSON schemas over the supported keywords, in the forms of the public JSON-Schema-Test-Suite, and random walks
through grammars."""

import json
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from pelton.structured.formats import FORMATS
from pelton.structured.limits import PARSER_LIMITS
from pelton.tokenizer import Tokenizer

NAMES = ("a", "foo", "bar", "größe", "名前", "with space", 'qu"ote', "back\\slash", "🐈", "$ref", "")
PATTERNS = ("^[a-z]{2,4}$", "\\d{3}", "^(ab|cd)+$", "^\\w+@\\w+\\.com$", "x", "^[^\\d\\s]{1,5}$", "^\\S{1,3}$", "[äöü]")
CONSTANTS = (None, True, False, 0, -3, 17, 2.5, "", "x", "né", '"\\\n', [], [1, "a"], {}, {"k": [None]})

Schema = dict[str, Any] | bool
Ids = npt.NDArray[np.int64]


class SchemaGenerator:
    """Makes schemas that something satisfies in a few steps. The same seed makes the same ones."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._definitions: dict[str, Schema] = {}
        self._is_draft_7 = False
        self._num_names = 0

    def schema(self) -> dict[str, Any]:
        self._definitions = {}
        self._is_draft_7 = self._chance(0.2)
        made = self._make(3)
        schema = made if isinstance(made, dict) else {}
        if self._definitions:
            schema["$defs"] = dict(self._definitions)
        if self._is_draft_7:
            schema["$schema"] = "http://json-schema.org/draft-07/schema#"
        if self._chance(0.3):
            schema |= {"title": "T", "description": "d", "default": 1, "examples": [1], "x-own": {"not": {}}}
        return schema

    def _new_number(self) -> int:
        self._num_names += 1
        return self._num_names

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _make(self, depth: int) -> Schema:
        leaves = [self._string, self._integer, self._number, self._constant, self._enum, self._scalar_types]
        nested = [self._array, self._tuple, self._object, self._object, self._map, self._any_of, self._all_of]
        nested += [self._one_of, self._reference, self._recursion]
        return self._random.choice(leaves if depth == 0 else leaves + 2 * nested)(depth)

    def _string(self, depth: int) -> Schema:
        kind = self._random.randrange(4)
        if kind == 0:
            return {"type": "string", "pattern": self._random.choice(PATTERNS)}
        if kind == 1:
            return {"type": "string", "format": self._random.choice(list(FORMATS))}
        if kind == 2:
            low = self._random.randrange(4)
            return {"type": "string", "minLength": low, "maxLength": low + self._random.randrange(4)}
        return {"type": ["string", "null"], "maxLength": 8}

    def _integer(self, depth: int) -> Schema:
        low = self._random.choice((-(10**12), -7, 0, 1, 2**40))
        schema: dict[str, Any] = {"type": "integer", "minimum": low, "maximum": low + self._random.randrange(12, 2000)}
        if self._chance(0.3):
            schema["multipleOf"] = self._random.choice((2, 3, 5))
        if self._chance(0.3):
            schema["exclusiveMinimum"] = schema.pop("minimum")
        return schema

    def _number(self, depth: int) -> Schema:
        low = self._random.choice((-100.5, -0.25, 0, 0.1, 3))
        names = self._random.choice((("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum")))
        schema: dict[str, Any] = {"type": "number", names[0]: low, names[1]: low + self._random.choice((0.5, 1, 1000))}
        if self._chance(0.2):
            schema = {"type": "number", "minimum": 0, "maximum": 50, "multipleOf": self._random.choice((0.5, 0.25))}
        return schema

    def _constant(self, depth: int) -> Schema:
        return {"const": self._random.choice(CONSTANTS)}

    def _enum(self, depth: int) -> Schema:
        return {"enum": self._random.sample(CONSTANTS, self._random.randint(1, 5))}

    def _scalar_types(self, depth: int) -> Schema:
        return {"type": self._random.sample(("null", "boolean", "integer"), self._random.randint(1, 3))}

    def _array(self, depth: int) -> Schema:
        low = self._random.randrange(3)
        schema: dict[str, Any] = {"type": "array", "items": self._make(depth - 1), "minItems": low}
        return schema | {"maxItems": low + self._random.randrange(3)}

    def _tuple(self, depth: int) -> Schema:
        items = [self._make(depth - 1) for _ in range(self._random.randint(1, 3))]
        rest: Schema = False if self._chance(0.5) else self._make(0)
        if self._is_draft_7:
            return {"type": "array", "items": items, "additionalItems": rest, "maxItems": 4}
        return {"type": "array", "prefixItems": items, "items": rest, "minItems": self._random.randint(0, len(items))}

    def _object(self, depth: int) -> Schema:
        names = self._random.sample(NAMES, self._random.randint(0, 4))
        schema: dict[str, Any] = {"type": "object", "properties": {name: self._make(depth - 1) for name in names}}
        schema["required"] = [name for name in names if self._chance(0.6)]
        if self._chance(0.2):
            schema["required"].append("unlisted")
        form = self._random.randrange(4)
        if form == 1:
            schema["additionalProperties"] = "unlisted" in schema["required"]
        elif form == 2:
            schema["additionalProperties"] = self._make(0)
        if self._chance(0.2) and form != 1:
            schema["patternProperties"] = {"^p_": self._make(0), "^\\d+$": self._make(0)}
        return schema

    def _map(self, depth: int) -> Schema:
        schema: dict[str, Any] = {"type": "object", "additionalProperties": self._make(depth - 1)}
        form = self._random.randrange(4)
        if form == 0:
            schema |= {"minProperties": 1, "maxProperties": 2}
        elif form == 1:
            schema["propertyNames"] = {"enum": ["k", "ключ"]}
        elif form == 2:
            schema["propertyNames"] = {"type": "string", "pattern": "^[a-z]{1,3}$"}
        return schema

    def _any_of(self, depth: int) -> Schema:
        return {"anyOf": [self._make(depth - 1) for _ in range(self._random.randint(1, 3))]}

    def _all_of(self, depth: int) -> Schema:
        left, right = self._random.sample(NAMES, 2)
        parts = [{"type": "object", "properties": {name: self._make(0)}, "required": [name]} for name in (left, right)]
        return {"allOf": [*parts, {"maxProperties": 3}]} if self._chance(0.2) else {"allOf": parts}

    def _one_of(self, depth: int) -> Schema:
        if self._chance(0.5):
            return {"oneOf": [{"type": "null"}, {"type": "integer", "minimum": 0}, {"type": "string", "maxLength": 2}]}
        options = []
        for kind in ("cat", "dog"):
            name = f"{kind}{self._new_number()}"
            properties = {"kind": {"const": kind}, "value": self._make(depth - 1)}
            self._definitions[name] = {"type": "object", "properties": properties, "required": ["kind", "value"]}
            options.append({"$ref": f"#/$defs/{name}"})
        return {"oneOf": options, "discriminator": {"propertyName": "kind"}}

    def _reference(self, depth: int) -> Schema:
        name = f"d{self._new_number()}/~%"
        self._definitions[name] = self._make(depth - 1)
        pointer = name.replace("~", "~0").replace("/", "~1").replace("%", "%25")
        return {"$ref": f"#/$defs/{pointer}", "description": "by reference"}

    def _recursion(self, depth: int) -> Schema:
        """A list node that refers to itself, as the classic of the suite."""
        name = f"node{self._new_number()}"
        link = {"$ref": f"#/$defs/{name}"}
        following = self._random.choice(({"anyOf": [link, {"type": "null"}]}, {"type": "array", "items": link}))
        self._definitions[name] = {}
        self._definitions[name] = {
            "type": "object",
            "properties": {"value": self._make(0), "next": following},
            "required": ["next"],
            "additionalProperties": False,
        }
        return dict(link)


def random_text(
    tokenizer: LLTokenizer, grammar: str, generator: random.Random, *, end: int, max_tokens: int = 400
) -> str | None:
    """A text of random tokens that the grammar allows, or None if it does not end soon. `end` is the end token's id.

    Tokens that close something become likelier with time, so that most texts end.
    """
    closing = [token for text in _CLOSING for token in tokenizer.greedy_tokenize(text)[:1]]
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LLParserLimits(**PARSER_LIMITS))
    ids: list[int] = []
    while not matcher.is_stopped():
        allowed = np.flatnonzero(np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little"))
        assert not matcher.is_error(), matcher.get_error()
        if end in allowed and (len(allowed) == 1 or generator.random() < 0.5):
            break
        if len(ids) == max_tokens:
            return None
        token = _chosen(allowed, closing, generator, len(ids) / 60)
        if token != end:
            ids.append(token)
            assert matcher.consume_token(token), matcher.get_error()
    return tokenizer.decode_bytes(ids).decode()


def _chosen(allowed: Ids, closing: Sequence[int], generator: random.Random, haste: float) -> int:
    if generator.random() < haste:
        for token in closing:
            if generator.random() < 0.8 and token in allowed:
                return token
    return int(allowed[generator.randrange(len(allowed))])


_CLOSING = ("}", "]", '"', "null", "0", ", ", ".", "a", "1", "-")


def compact(value: object) -> str:
    """JSON in the style of the grammars."""
    return json.dumps(value, ensure_ascii=False)


class PlainVocabulary:
    """A tokenizer for llguidance."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokens = [tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)]
        self.special_token_ids = sorted(tokenizer.special_ids)
        self.eos_token_id = tokenizer.eos_token_ids[0]
        self.bos_token_id = None
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)
