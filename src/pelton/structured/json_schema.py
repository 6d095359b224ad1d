"""JSON Schema to the part of it that the grammar library enforces to the letter; the rest is refused by name.

Semantics are those of draft 2020-12; the older drafts' lists as `items` and booleans as `exclusiveMinimum` are
understood too. A key that is no keyword of any draft is an annotation, as the specification says. Every text that the
resulting grammar accepts validates against the client's schema. Not every text that would validate is accepted:
properties come in the schema's order, and printable characters are never escaped.
"""

from collections.abc import Callable
from typing import Any

from pelton.errors import RequestError
from pelton.structured.formats import FORMATS, UNSUPPORTED_FORMATS
from pelton.structured.json_values import (
    inexact_number,
    shown,
    unwritable_character,
)
from pelton.structured.limits import MAX_DEPTH
from pelton.structured.references import References
from pelton.structured.regex import check_regex, portable_regex
from pelton.structured.rewrites import make_bounds_exact, simplified

Schema = dict[str, Any] | bool

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
UNSUPPORTED_KEYWORDS = (
    *("not", "if", "then", "else", "dependentSchemas", "dependentRequired", "dependencies"),
    *("unevaluatedProperties", "unevaluatedItems", "contains", "minContains", "maxContains", "uniqueItems"),
    *("propertyNames", "$dynamicRef", "$recursiveRef", "x-guidance"),
)

_Handler = Callable[[str, object, str], dict[str, Any]]


def prepare_schema(schema: object, param: str) -> Schema:
    """The schema with supported keywords only and every $ref pointing into its own $defs.

    Args:
        param: the request field that holds the schema.

    Raises:
        RequestError: names the place (as `$.properties.x`) and the keyword. A $ref outside the schema is never fetched.
    """
    return _Preparation(schema, param).run()


class _Preparation:
    """Goes through one schema, from the root along what is reachable.

    A handler takes a keyword, its value and its place, and gives what stands for it.
    """

    def __init__(self, root: object, param: str) -> None:
        self._root = root
        self._param = param
        self._references = References(root)
        self._definitions: dict[str, Schema] = {}
        self._one_ofs: list[list[Schema]] = []
        self._depth = 0
        self._handlers: dict[str, _Handler] = {
            "type": self._type,
            "$ref": self._ref,
            "required": self._required,
            "items": self._schema,
            "additionalProperties": self._schema,
            "enum": self._enum,
            "const": self._const,
            "pattern": self._pattern,
            "format": self._format,
            **dict.fromkeys(("properties", "patternProperties"), self._properties),
            **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), self._schemas),
            **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), self._count),
            **dict.fromkeys(("minProperties", "maxProperties"), self._count),
            **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), self._bound),
            "multipleOf": self._multiple_of,
        }

    def run(self) -> Schema:
        if not isinstance(self._root, dict):
            raise self._error("$", f"a JSON schema must be an object, got {shown(self._root)}")
        prepared = self._visit(self._root, "$")
        while self._references.pending:
            name, pointer, node = self._references.pending.pop()
            self._definitions[name] = self._visit(node, f"#{pointer}")
        for options in self._one_ofs:
            options[:] = [self._inlined(option) for option in options]
        if self._definitions and isinstance(prepared, dict):
            prepared["$defs"] = self._definitions
        return prepared

    def _error(self, place: str, reason: str) -> RequestError:
        return RequestError(f"{self._param}: at {place}: {reason}", param=self._param)

    def _visit(self, node: object, path: str) -> Schema:
        if isinstance(node, bool):
            return node
        if not isinstance(node, dict):
            raise self._error(path, f"a schema must be an object or a boolean, got {shown(node)}")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(path[:80], f"the schema is nested more than {MAX_DEPTH} levels deep")
        simple = simplified(node, self._references)
        prepared = simple if isinstance(simple, bool) else self._prepared(simple, path, is_root=node is self._root)
        self._depth -= 1
        return prepared

    def _prepared(self, node: dict[str, Any], path: str, *, is_root: bool) -> dict[str, Any]:
        prepared: dict[str, Any] = {}
        for keyword, value in node.items():
            if keyword in UNSUPPORTED_KEYWORDS:
                raise self._error(f"{path}.{keyword}", f"the keyword `{keyword}` is not supported")
            if keyword == "$id" and not is_root:
                raise self._error(f"{path}.$id", "`$id` is supported at the root of the schema only")
            handler = self._handlers.get(keyword)
            if handler is None:
                continue
            for name, entry in handler(keyword, value, f"{path}.{keyword}").items():
                prepared[name] = [*prepared.get(name, ()), *entry] if name == "allOf" else entry
        make_bounds_exact(prepared)
        num_required = len(set(prepared.get("required", ())))
        if prepared.get("minProperties", 0) > num_required + 1:
            # Names that the schema does not list may repeat, and a name that repeats makes one property.
            raise self._error(
                f"{path}.minProperties",
                "the keyword `minProperties` is supported up to the number of `required` properties plus one",
            )
        return prepared

    def _type(self, keyword: str, value: object, place: str) -> dict[str, Any]:
        names: list[object] = value if isinstance(value, list) else [value]
        if not names:
            raise self._error(place, "the list of types is empty")
        for name in names:
            if name not in TYPES:
                raise self._error(place, f"unknown type {shown(name)}; the types are {', '.join(TYPES)}")
        return {keyword: value}

    def _ref(self, keyword: str, value: object, place: str) -> dict[str, Any]:
        try:
            return {keyword: f"#/$defs/{self._references.name_of(value)}"}
        except LookupError as error:
            raise self._error(place, f"$ref {shown(value)} {error.args[0]}") from None

    def _schema(self, keyword: str, value: object, place: str) -> dict[str, Any]:
        return {keyword: self._visit(value, place)}

    def _schemas(self, keyword: str, value: object, place: str) -> dict[str, Any]:
        if not isinstance(value, list) or not value:
            raise self._error(place, "must be a non-empty list of schemas")
        schemas = [self._visit(each, f"{place}[{index}]") for index, each in enumerate(value)]
        if keyword == "oneOf":
            self._one_ofs.append(schemas)
        return {keyword: schemas}

    def _properties(self, keyword: str, value: object, place: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._error(place, "must be an object of schemas")
        properties: dict[str, Schema] = {}
        for name, each in value.items():
            if keyword == "patternProperties":
                check_regex(name, self._param, f"at {place}: ")
                properties[portable_regex(name)] = self._visit(each, f"{place}.{name}")
            else:
                self._check_constant(name, place)
                properties[name] = self._visit(each, f"{place}.{name}")
        return {keyword: properties}

    def _required(self, keyword: str, value: object, place: str) -> dict[str, Any]:
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise self._error(place, "must be a list of property names")
        self._check_constant(value, place)
        return {keyword: value}

    def _enum(self, keyword: str, value: object, place: str) -> dict[str, Any]:
        if not isinstance(value, list) or not value:
            raise self._error(place, "must be a non-empty list of values")
        self._check_constant(value, place)
        return {keyword: value}

    def _const(self, keyword: str, value: object, place: str) -> dict[str, Any]:
        self._check_constant(value, place)
        return {keyword: value}

    def _check_constant(self, value: object, place: str) -> None:
        character = unwritable_character(value)
        if character is not None:
            raise self._error(place, f"the character U+{ord(character):04X} is not supported in constants and names")
        number = inexact_number(value)
        if number is not None:
            raise self._error(place, f"{shown(number)} has too many digits for a constant; 15 are supported")

    def _count(self, keyword: str, value: object, place: str) -> dict[str, Any]:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
            raise self._error(place, f"must be an integer from 0 to {2**31 - 1}, got {shown(value)}")
        return {keyword: value}

    def _bound(self, keyword: str, value: object, place: str) -> dict[str, Any]:
        if isinstance(value, bool) and keyword.startswith("exclusive"):  # draft 4
            return {keyword: value}
        return {keyword: self._number(value, place)}

    def _multiple_of(self, keyword: str, value: object, place: str) -> dict[str, Any]:
        step = self._number(value, place)
        if step <= 0:
            raise self._error(place, f"must be above 0, got {shown(value)}")
        return {keyword: step}

    def _number(self, value: object, place: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not -1e300 < value < 1e300:
            raise self._error(place, f"must be a number within +-1e300, got {shown(value)}")
        return value

    def _pattern(self, keyword: str, value: object, place: str) -> dict[str, Any]:
        if not isinstance(value, str):
            raise self._error(place, f"must be a regular expression, got {shown(value)}")
        check_regex(value, self._param, f"at {place}: ")
        return {keyword: portable_regex(value)}

    def _format(self, keyword: str, value: object, place: str) -> dict[str, Any]:
        """As a pattern. A name that is in no draft is an annotation, as the specification says."""
        if not isinstance(value, str):
            raise self._error(place, f"must be a string, got {shown(value)}")
        if value in UNSUPPORTED_FORMATS:
            raise self._error(
                place, f"the format `{value}` of the keyword `{keyword}` is not supported; try {', '.join(FORMATS)}"
            )
        return {"allOf": [{"pattern": f"^(?:{FORMATS[value]})$"}]} if value in FORMATS else {}

    def _inlined(self, option: Schema) -> Schema:
        """An option of a oneOf without its $ref: whether options exclude each other is seen without following any."""
        for _ in range(MAX_DEPTH):
            if not isinstance(option, dict) or list(option) != ["$ref"]:
                break
            option = self._definitions[option["$ref"].removeprefix("#/$defs/")]
        return option
