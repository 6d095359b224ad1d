"""What the server and its grammar checker say to each other: one JSON document a line."""

from typing import Any, Literal

import msgspec

ConstraintKind = Literal["json", "json_object", "regex", "choice", "grammar", "structural_tag", "compiled"]


class Vocabulary(msgspec.Struct, frozen=True):
    """What grammars may name of a tokenizer: special tokens by their text, tokens by their id."""

    size: int
    eos_token_ids: tuple[int, ...]
    special: dict[int, str]


class Constraint(msgspec.Struct, frozen=True):
    """What a client wants its output to obey.

    `value` is the schema, expression, list, grammar or structural tag as it came in the request's field `param`. Of
    kind "compiled" it is a grammar that the server has made itself.
    """

    kind: ConstraintKind
    value: Any
    param: str


class Compiled(msgspec.Struct, frozen=True):
    """The grammar, or why there is none and the field at fault."""

    grammar: str | None = None
    error: str | None = None
    param: str | None = None
