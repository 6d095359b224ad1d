"""Grammars of every kind: what they accept, and what is refused with which words."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from llguidance import LLMatcher

from pelton.errors import RequestError
from pelton.structured.check import Checker
from pelton.structured.checker import GrammarChecker
from pelton.structured.limits import MAX_CHOICES, MAX_REGEX_LENGTH, MAX_REPEAT, MAX_SCHEMA_BYTES
from pelton.structured.messages import Constraint, ConstraintKind, Vocabulary
from pelton.tokenizer import Tokenizer

from fakes import tiny_tokenizer

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": ["integer", "null"], "minimum": 0, "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
NODE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"enum": ["ä", 1]},
                "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            },
            "required": ["value", "next"],
        }
    },
    "$ref": "#/$defs/node",
}
GRID = {
    "type": "array",
    "items": {"type": "array", "items": {"const": "🐈"}, "minItems": 1, "maxItems": 2},
    "minItems": 2,
    "maxItems": 2,
}
TAGS = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<f=a>", "schema": {"type": "object", "properties": {"x": {"const": 1}}}, "end": "</f>"},
        {"begin": "<f=b>", "schema": {"const": 2}, "end": ""},
    ],
    "triggers": ["<f="],
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tiny_tokenizer()


@pytest.fixture(scope="module")
def checker() -> Checker:
    return Checker(Vocabulary(300, (256,), {256: "<end>"}))


def compiled(checker: Checker, kind: ConstraintKind, value: object) -> str:
    return checker.checked(Constraint(kind, value, "field"))


def refusal(checker: Checker, kind: ConstraintKind, value: object) -> str:
    """The message, which must name the field, and come in a second."""
    start = time.perf_counter()
    with pytest.raises(RequestError) as refused:
        compiled(checker, kind, value)
    assert time.perf_counter() - start < 5  # a second's work on a machine that does other things
    assert refused.value.status == 400
    assert str(refused.value.param).startswith("field")
    assert refused.value.message.startswith("field")
    return refused.value.message


def accepts(checker: Checker, grammar: str, text: str) -> bool:
    matcher = LLMatcher(checker.tokenizer, grammar, log_level=0)
    ids = list(text.encode())
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


ACCEPTED: list[tuple[ConstraintKind, Any, list[str], list[str]]] = [
    ("json", PERSON, ['{"name": "Zoë", "age": null}'], ['{"name":"a","age":1}', '{"name": "a",  "age": 1}', "{}"]),
    ("json", json.dumps(PERSON), ['{"name": "", "age": 150}'], ['{"name": "", "age": 151}', '{"name": "", "age": -1}']),
    ("json", NODE, ['{"value": "ä", "next": {"value": 1, "next": null}}'], ['{"value": "b", "next": null}']),
    ("json", GRID, ['[["🐈"], ["🐈", "🐈"]]'], ["[]", '[["🐈"]]', '[["🐈"], []]', '[["🐈"], ["x"]]']),
    ("json", {}, ["1", '{"a": [null, true]}'], ["", " 1", "1 ", "[1,2]", "\n\n"]),
    ("json", {"pattern": "^ü{2}$", "type": "string"}, ['"üü"'], ['"ü"', '"u"']),
    ("json", {"oneOf": [{"type": "string"}, {"type": "null"}]}, ['"a"', "null"], ["1"]),
    ("json", {"type": "number", "exclusiveMinimum": 3, "exclusiveMaximum": 3.5}, ["3.1"], ["3", "3.0", "3.5", "2.9"]),
    ("json", {"maximum": 2**63 - 1, "type": "integer"}, ["9223372036854774784"], ["9223372036854775808"]),
    ("json", {"type": "string", "format": "date"}, ['"2024-02-29"'], ['"2023-02-29"', '"2024-13-01"', '"x"']),
    ("json", {"type": "string", "format": "own"}, ['"anything"'], ["1"]),
    ("json_object", None, ["{}", '{"a": {"b": [1, "x"]}}'], ["[]", '"a"', "{ }", '{"a":1}']),
    ("regex", r"(\d{3}-){2}\d{4}", ["555-123-4567"], ["555-123-456", "x555-123-4567", "٣٣٣-123-4567"]),
    ("regex", "h.llo", ["hällo", "h🐈llo"], ["h\nllo", "hllo"]),
    ("regex", "^a/b\n\"c'$", ["a/b\n\"c'"], ["a/b"]),
    ("regex", "(a+)+b", ["aaab"], ["aaa"]),
    ("choice", ["🐈", "🐕"], ["🐈", "🐕"], ["", "🐈🐕", "\U0001f409"]),
    ("choice", ["a", "ab"], ["a", "ab"], ["b", "abb"]),
    ("choice", ['"quoted"\n\\', ""], ['"quoted"\n\\', ""], ["quoted"]),
    ("grammar", 'start: "a" B+\nB: /[0-9]/', ["a12"], ["a", "12"]),
    ("grammar", 'root ::= "yes" | [0-9]+ item?\nitem ::= "!"', ["yes", "42!"], ["yes!", "no"]),
    ("structural_tag", TAGS, ["text", 'a<f=a>{"x": 1}</f> b<f=b>2', "a <f"], ["<f=c>", '<f=a>{"x": 2}</f>', "<f=b>3"]),
]


@pytest.mark.parametrize(("kind", "value", "good", "bad"), ACCEPTED)
def test_a_grammar_accepts_exactly_what_was_asked_for(
    checker: Checker, kind: ConstraintKind, value: object, good: list[str], bad: list[str]
):
    grammar = compiled(checker, kind, value)
    assert [accepts(checker, grammar, text) for text in good] == [True] * len(good)
    assert [accepts(checker, grammar, text) for text in bad] == [False] * len(bad)


@pytest.mark.parametrize(
    ("additional", "good", "bad"),
    [
        (None, ['{"a": 1}', '{"a": 1, "é": []}'], []),
        (True, ['{"a": 1, "b": null}'], []),
        (False, ['{"a": 1}'], ['{"a": 1, "b": null}']),
        ({"type": "boolean"}, ['{"a": 1, "é": true}'], ['{"a": 1, "b": null}']),
    ],
)
def test_additional_properties_have_three_forms(checker: Checker, additional: object, good: list[str], bad: list[str]):
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
    if additional is not None:
        schema["additionalProperties"] = additional
    grammar = compiled(checker, "json", schema)
    assert [accepts(checker, grammar, text) for text in good] == [True] * len(good)
    assert [accepts(checker, grammar, text) for text in [*bad, "{}"]] == [False] * (len(bad) + 1)


def test_an_additional_name_cannot_be_a_listed_one_in_disguise(checker: Checker):
    grammar = compiled(checker, "json", {"type": "object", "properties": {"a": {"type": "integer"}}})
    assert accepts(checker, grammar, '{"b": "x"}')
    assert not accepts(checker, grammar, '{"\\u0061": "x"}')


REWRITTEN = [
    ({"items": [{"const": 1}], "additionalItems": False}, ["[1]", "[]"], ["[1, 1]", "[2]"]),
    ({"items": {"not": {}}}, ["[]"], ["[1]"]),
    ({"uniqueItems": False, "propertyNames": {"type": "string"}, "not": False}, ["[1, 1]"], []),
    (
        {"type": "object", "propertyNames": {"enum": ["k"]}, "additionalProperties": {"const": 1}},
        ['{"k": 1}'],
        ['{"l": 1}'],
    ),
    ({"type": "object", "propertyNames": {"pattern": "^x"}}, ['{"xy": 1}', "{}"], ['{"y": 1}']),
    ({"type": "object", "properties": {"a": {}}, "unevaluatedProperties": False}, ['{"a": 1}'], ['{"b": 1}']),
    ({"type": "integer", "minimum": 3, "exclusiveMinimum": True}, ["4"], ["3"]),
    ({"$id": "http://x/y", "$ref": "http://x/y#/$defs/a", "$defs": {"a": {"const": 1}}}, ["1"], ["2"]),
    ({"$ref": "#here", "$defs": {"a": {"$anchor": "here", "const": 1}}}, ["1"], ["2"]),
    ({"$ref": "#/$defs/a~1b%25", "$defs": {"a/b%": {"const": 1}}}, ["1"], ["2"]),
]


@pytest.mark.parametrize(("schema", "good", "bad"), REWRITTEN)
def test_common_forms_are_understood(checker: Checker, schema: object, good: list[str], bad: list[str]):
    grammar = compiled(checker, "json", schema)
    assert [accepts(checker, grammar, text) for text in good] == [True] * len(good)
    assert [accepts(checker, grammar, text) for text in bad] == [False] * len(bad)


def chain(length: int) -> dict[str, Any]:
    """References that are followed one inside the other."""
    links = {f"d{index}": {"items": {"$ref": f"#/$defs/d{index + 1}"}} for index in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{length}": {}}}


def nested(depth: int) -> str:
    return '{"items":' * depth + "{}" + "}" * depth


REFUSED: list[tuple[ConstraintKind, Any, str]] = [
    ("json", [1], "at $: a JSON schema must be an object, got [1]"),
    ("json", 5, "at $: a JSON schema must be an object, got 5"),
    ("json", '{"type":', "is not valid JSON"),
    ("json", '{"const": 1e999}', "too many digits"),
    ("json", '{"const": NaN}', "too many digits"),
    ("json", {"properties": {"a": {"type": "strin"}}}, "at $.properties.a.type: unknown type 'strin'"),
    ("json", {"type": []}, "at $.type: the list of types is empty"),
    ("json", {"anyOf": [{}, {"$ref": "#/$defs/no"}]}, "at $.anyOf[1].$ref: $ref '#/$defs/no' points to nothing"),
    ("json", {"$ref": "https://example.com/s.json"}, "is outside of this schema; nothing is fetched"),
    ("json", {"$ref": "file:///etc/passwd"}, "is outside of this schema; nothing is fetched"),
    ("json", {"$ref": "#"}, "no text can satisfy it"),
    ("json", {"properties": {"a": {"$id": "b"}}}, "at $.properties.a.$id: `$id` is supported at the root"),
    ("json", {"properties": 1}, "at $.properties: must be an object of schemas"),
    ("json", {"required": "a"}, "at $.required: must be a list of property names"),
    ("json", {"enum": []}, "at $.enum: must be a non-empty list"),
    ("json", {"minLength": -1}, "at $.minLength: must be an integer from 0"),
    ("json", {"maxItems": 1.5}, "at $.maxItems: must be an integer from 0"),
    ("json", {"minimum": "1"}, "at $.minimum: must be a number"),
    ("json", {"multipleOf": 0}, "at $.multipleOf: must be above 0"),
    ("json", {"pattern": "("}, "unclosed group"),
    ("json", {"pattern": "(?=a)"}, "at $.pattern: regex '(?=a)': lookaround is not supported"),
    ("json", {"pattern": r"(a)\1"}, "backreferences are not supported"),
    ("json", {"pattern": r"\bword\b"}, "word boundaries are not supported"),
    ("json", {"format": "iri"}, "at $.format: the format `iri`"),
    ("json", {"const": "\x00"}, "the character U+0000"),
    ("json", {"const": 2**53 + 1}, "too many digits"),
    ("json", {"minProperties": 2}, "at $.minProperties: the keyword `minProperties`"),
    ("json", {"oneOf": [{"minimum": 1}, {"maximum": 2}]}, "the keyword `oneOf` is supported where"),
    ("json", {"type": "integer", "minimum": 2, "maximum": 1}, "Unsatisfiable schema"),
    ("json", {"x-guidance": {"lenient": True}}, "the keyword `x-guidance` is not supported"),
    ("json", {"not": 1}, "at $.not: the keyword `not` is not supported"),
    ("json", {"uniqueItems": 0}, "at $.uniqueItems: the keyword `uniqueItems` is not supported"),
    ("json", {"not": {}}, "nothing validates against this schema"),
    ("json", nested(101), "nested more than 100 levels deep"),
    ("json", nested(30_000), "field"),
    ("json", " " * (MAX_SCHEMA_BYTES + 1), f"is longer than {MAX_SCHEMA_BYTES}"),
    ("json", {"allOf": [{"anyOf": [{"required": [f"{i}{c}"]} for c in "ab"]} for i in range(20)]}, "too large"),
    ("regex", "(", "unclosed group"),
    ("regex", "a\\", "ends with a backslash"),
    ("regex", "[^\\s\\S]", "no text can satisfy it"),
    ("regex", f"a{{{10**6}}}", f"repeats a part more than {MAX_REPEAT} times"),
    ("regex", "((a{100}){100}){100}", f"repeats a part more than {MAX_REPEAT} times"),
    ("regex", f"a{{{'9' * 5000}}}", f"repeats a part more than {MAX_REPEAT} times"),
    ("regex", "a" * (MAX_REGEX_LENGTH + 1), f"longer than {MAX_REGEX_LENGTH}"),
    ("regex", 5, "must be a regular expression, got 5"),
    ("regex", "", "must be a regular expression, got ''"),
    ("choice", [], "non-empty list of strings"),
    ("choice", [1], "non-empty list of strings"),
    ("choice", ["x"] * (MAX_CHOICES + 1), f"at most {MAX_CHOICES}"),
    ("choice", ["x" * 300_000], "longer than"),
    ("grammar", "", "must be a grammar"),
    ("grammar", "start: foo", 'unknown name: "foo"'),
    ("grammar", "root ::= (", "cannot be read"),
    ("grammar", "root ::= missing", "missing"),
    ("grammar", "start: <|no_such_token|>", "unknown special token"),
    ("grammar", "start: start", "no text can satisfy it"),
    ("grammar", "%import /etc/passwd.X\nstart: X", "Expected name"),
    ("grammar", 'start: A\nA: "a"{1000000}', f"repeats a part more than {MAX_REPEAT} times"),
    ("grammar", 'start: ("a" "b"){3,1000000}', f"repeats a part more than {MAX_REPEAT} times"),
    ("grammar", 'start: "a"~2..1000000', f"repeats a part more than {MAX_REPEAT} times"),
    ("grammar", "start: /a{1000000,}/", f"repeats a part more than {MAX_REPEAT} times"),
    ("grammar", f'start: "a"{{{"9" * 5000}}}', f"repeats a part more than {MAX_REPEAT} times"),
    ("grammar", 'root ::= "a"{1000000}', f"repeats a part more than {MAX_REPEAT} times"),
    ("grammar", "start: " + '"a"? ' * 10_000, "too complex"),
    ("grammar", "start: " + "(" * 10_000 + '"a"' + ")" * 10_000, "too deeply nested"),
    ("grammar", 'start: %json {"not": {"type": "string"}}', "not"),
    ("structural_tag", {"format": {}}, "needs `structures` and `triggers`"),
    ("structural_tag", {"structures": [], "triggers": ["<"]}, "must be a list of 1 to"),
    ("structural_tag", {**TAGS, "triggers": [""]}, "list of non-empty strings"),
    ("structural_tag", {**TAGS, "triggers": ["<f=a>"]}, "'<f=b>' begins with no trigger"),
    ("structural_tag", {**TAGS, "structures": [{"begin": "<f="}]}, "needs `begin`, `schema` and `end`"),
    (
        "structural_tag",
        {**TAGS, "structures": [{"begin": "<f=", "end": "", "schema": {"if": {}}}]},
        "field.structures[0].schema: at $.if: the keyword `if` is not supported",
    ),
]


@pytest.mark.parametrize(("kind", "value", "words"), REFUSED, ids=lambda value: repr(value)[:40])
def test_what_cannot_be_enforced_is_refused_in_words(checker: Checker, kind: ConstraintKind, value: object, words: str):
    assert words in refusal(checker, kind, value)


@pytest.fixture
def service(tokenizer: Tokenizer) -> Iterator[GrammarChecker]:
    service = GrammarChecker(tokenizer, compile_seconds=2.0)
    yield service
    service.close()


DEADLY = [
    ("json", chain(5_000)),
    ("grammar", "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(10_000)) + 'r10000: "a"\n'),
]


@pytest.mark.parametrize(("kind", "value"), DEADLY, ids=["schema", "grammar"])
def test_a_grammar_that_kills_its_compiler_is_refused_and_the_next_one_compiles(
    service: GrammarChecker, kind: ConstraintKind, value: object
):
    async def main() -> None:
        for _ in range(2):  # the second time from the cache
            with pytest.raises(RequestError, match="too complex or too deeply nested") as refused:
                await service.compile(Constraint(kind, value, "field"))
            assert (refused.value.status, refused.value.param) == (400, "field")
        assert service.num_starts == 1
        assert await service.compile(Constraint("regex", "a+", "field")) == "start: /a+/"

    asyncio.run(main())


def test_a_compiler_that_takes_too_long_is_ended(tokenizer: Tokenizer):
    async def main() -> None:
        service = GrammarChecker(tokenizer, compile_seconds=0.0001)
        slow = Constraint("choice", [f"choice {index}" for index in range(9_000)], "field")
        with pytest.raises(RequestError, match=r"it is too complex: compiling takes over 0\.0001 s"):
            await service.compile(slow)
        service.close()

    asyncio.run(main())


def test_the_event_loop_runs_on_while_grammars_compile(service: GrammarChecker):
    async def main() -> float:
        await service.compile(Constraint("regex", "warm", "field"))
        schemas = [{"type": "string", "enum": [f"{n} {index}" for index in range(3_000)]} for n in range(4)]
        compiling = asyncio.gather(*(service.compile(Constraint("json", schema, "field")) for schema in schemas))
        longest = 0.0
        while not compiling.done():
            start = time.perf_counter()
            await asyncio.sleep(0.001)
            longest = max(longest, time.perf_counter() - start)
        await compiling
        return longest

    assert asyncio.run(main()) < 0.2


def test_200_schemas_in_a_row_leave_the_memory_flat(service: GrammarChecker):
    async def main() -> tuple[int, int]:
        await compile_many(service, 50, 0)
        before = resident_bytes()
        await compile_many(service, 200, 1)
        return before, resident_bytes()

    before, after = asyncio.run(main())
    assert after - before < 4 * 2**20


async def compile_many(service: GrammarChecker, count: int, batch: int) -> None:
    for index in range(count):
        schema = {"type": "object", "properties": {f"p{batch}_{index}": {"type": "string"}}}
        assert (await service.compile(Constraint("json", schema, "field"))).startswith("start: %json")


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_the_same_grammar_is_compiled_once_for_all_that_wait(service: GrammarChecker):
    async def main() -> list[str]:
        constraint = Constraint("json", {"type": "object"}, "field")
        return await asyncio.gather(*(service.compile(constraint) for _ in range(20)))

    assert len(set(asyncio.run(main()))) == 1
    assert service.num_compiled == 1


def test_a_client_that_goes_leaves_the_others_their_grammar(service: GrammarChecker):
    async def main() -> str:
        constraint = Constraint("json", {"type": "object"}, "field")
        first = asyncio.create_task(service.compile(constraint))
        second = asyncio.create_task(service.compile(constraint))
        await asyncio.sleep(0)
        first.cancel()
        return await second

    assert asyncio.run(main()).startswith("start: %json")


def test_the_server_does_not_import_the_grammar_library():
    code = "import sys, pelton.http.app; print('llguidance' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
