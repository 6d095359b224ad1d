"""Forms of JSON Schema that common generators write, in keywords that can be enforced."""

from typing import Any

from pelton.structured.json_values import inclusive, inside
from pelton.structured.references import References

_ASKS_NOTHING: dict[str, tuple[object, ...]] = {
    "uniqueItems": (False,),
    "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}),
    "propertyNames": (True, {}, {"type": "string"}),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
    "not": (False, {"not": {}}),
}
_APPLICATORS = ("$ref", "allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas", "$dynamicRef")


def simplified(node: dict[str, Any], references: References) -> dict[str, Any] | bool:
    """The same schema without keywords that ask for nothing, with lists as `items` as prefixItems, with propertyNames
    as properties, and with unevaluatedProperties as additionalProperties, where that says the same."""
    if _is_one_of(node.get("not"), (True, {})):  # as some generators write "never"
        return False
    simple = {
        keyword: value
        for keyword, value in node.items()
        if keyword not in _ASKS_NOTHING or not _is_one_of(value, _ASKS_NOTHING[keyword])
    }
    _without_list_items(simple)
    _without_property_names(simple, references)
    has_applicator = any(keyword in simple for keyword in _APPLICATORS)
    if "unevaluatedProperties" in simple and "additionalProperties" not in simple and not has_applicator:
        simple["additionalProperties"] = simple.pop("unevaluatedProperties")
    return simple


def _is_one_of(value: object, options: tuple[object, ...]) -> bool:
    return any(type(value) is type(option) and value == option for option in options)  # 1 is not true here


def make_bounds_exact(prepared: dict[str, Any]) -> None:
    """Replace exclusive bounds, also the booleans of draft 4, and bounds of many digits by inclusive ones just inside.

    A decimal of enough digits is below a bound and yet reads as the float64 that is the bound; and the grammar library
    takes an exclusive bound itself for one that lies within where both bounds have the same integer part.
    """
    for keyword, exclusive, direction in (("minimum", "exclusiveMinimum", 1), ("maximum", "exclusiveMaximum", -1)):
        bounds: list[float] = []
        excluded = prepared.pop(exclusive, False)
        if keyword in prepared:
            bound = prepared.pop(keyword)
            bounds.append(inside(bound, direction) if excluded is True else inclusive(bound, direction))
        if not isinstance(excluded, bool):
            bounds.append(inside(excluded, direction))
        if bounds:
            prepared[keyword] = max(bounds) if direction > 0 else min(bounds)


def _without_list_items(node: dict[str, Any]) -> None:
    items = node.get("items")
    if isinstance(items, list):
        del node["items"]
        if items:
            node["prefixItems"] = items
        if "additionalItems" in node:
            node["items"] = node["additionalItems"]


def _without_property_names(node: dict[str, Any], references: References) -> None:
    """A map whose keys are listed or match a pattern: `Record<"a" | "b", T>`, `dict[Literal["a", "b"], T]`."""
    names: object = node.get("propertyNames")
    if isinstance(names, dict) and list(names) == ["$ref"]:
        try:
            names = references.target(names["$ref"])
        except LookupError:
            return  # reported where $ref is
    if not isinstance(names, dict) or "properties" in node or "patternProperties" in node:
        return
    rules = {keyword: value for keyword, value in names.items() if keyword not in ("title", "description", "$schema")}
    if rules.get("type") == "string":
        del rules["type"]
    values = node.get("additionalProperties", True)
    match list(rules.items()):
        case [("enum", [*allowed])] if all(isinstance(name, str) for name in allowed):
            replacement = {"properties": dict.fromkeys(allowed, values)}
        case [("const", str() as only)]:
            replacement = {"properties": {only: values}}
        case [("pattern", str() as pattern)]:
            replacement = {"patternProperties": {pattern: values}}
        case _:
            return
    node.pop("propertyNames")
    node |= {**replacement, "additionalProperties": False}
