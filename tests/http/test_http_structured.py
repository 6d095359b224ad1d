"""The fields that constrain an output: the grammar that reaches the engine, and refusals that name their field."""

import asyncio
import json
import time
from typing import Any

import httpx
import pytest

from pelton.types import SamplingParams

from fakes import Client, FakeEngine, Running, serving

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
BODIES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "hi"},
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
STYLE = (
    '"x-guidance":{"whitespace_flexible":false,"item_separator":", ","key_separator":": ",'
    '"json_allowed_escapes":"nrbtf\\\\\\""}'
)
SCHEMA_GRAMMAR = f"start: %json {json.dumps(SCHEMA, separators=(',', ':'))[:-1]},{STYLE}}}"
OBJECT_GRAMMAR = f'start: %json {{"type":"object",{STYLE}}}'
TAGS = {"structures": [{"begin": "<f>", "schema": {"const": 1}, "end": "</f>"}], "triggers": ["<f>"]}

GRAMMARS: list[tuple[dict[str, Any], str | None]] = [
    ({"response_format": {"type": "text"}}, None),
    ({"response_format": None}, None),
    ({"response_format": {"type": "json_object"}}, OBJECT_GRAMMAR),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}},
        SCHEMA_GRAMMAR,
    ),
    ({"structured_outputs": {"json": SCHEMA}}, SCHEMA_GRAMMAR),
    ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, SCHEMA_GRAMMAR),
    ({"structured_outputs": {"json": SCHEMA, "regex": None, "disable_fallback": True}}, SCHEMA_GRAMMAR),
    ({"structured_outputs": {"json_object": True}}, OBJECT_GRAMMAR),
    ({"structured_outputs": {"json_object": False}}, None),
    ({"structured_outputs": {}}, None),
    ({"structured_outputs": {"regex": "a/b"}}, "start: /a\\/b/"),
    ({"structured_outputs": {"choice": ["🐈", "🐕"]}}, 'start: CHOICE\nCHOICE: "🐈" | "🐕"'),
    ({"structured_outputs": {"grammar": 'start: "a"'}}, 'start: "a"'),
    ({"guided_json": SCHEMA}, SCHEMA_GRAMMAR),
    ({"guided_json": json.dumps(SCHEMA), "guided_decoding_backend": "outlines"}, SCHEMA_GRAMMAR),
    ({"guided_json_object": True}, OBJECT_GRAMMAR),
    ({"guided_regex": "[0-9]+"}, "start: /[0-9]+/"),
    ({"guided_choice": ["a"]}, 'start: CHOICE\nCHOICE: "a"'),
    ({"guided_grammar": 'start: "a"'}, 'start: "a"'),
    ({"response_format": {"type": "text"}, "guided_regex": "a"}, "start: /a/"),
]

REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing"),
    ({"response_format": {"type": "json_schema", "json_schema": []}}, "response_format.json_schema", "an object"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        "response_format.json_schema.schema",
        "must be a JSON schema",
    ),
    ({"response_format": {"type": "json_schema", "json_schema": SCHEMA}}, "response_format.json_schema.schema", "must"),
    ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, "response_format.schema", "json_schema.schema"),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "response_format.schema", "json_schema.schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"properties": {"a": {"not": 1}}}}}},
        "response_format.json_schema.schema",
        "at $.properties.a.not: the keyword `not` is not supported",
    ),
    ({"response_format": {"type": "yaml"}}, "response_format.type", "json_object"),
    ({"response_format": {}}, "response_format.type", "json_object"),
    ({"response_format": {"type": "structural_tag"}}, "response_format", "structures"),
    ({"response_format": "json"}, "response_format", "object"),
    ({"structured_outputs": {"json": {"type": "x"}}}, "structured_outputs.json", "at $.type: unknown type 'x'"),
    ({"structured_outputs": {"json": 5}}, "structured_outputs.json", "must be an object"),
    ({"structured_outputs": {"json_object": 1}}, "structured_outputs.json_object", "boolean"),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex", "unclosed group"),
    ({"structured_outputs": {"choice": "a"}}, "structured_outputs.choice", "list of strings"),
    ({"structured_outputs": {"grammar": ""}}, "structured_outputs.grammar", "must be a grammar"),
    ({"structured_outputs": {"structural_tag": "{"}}, "structured_outputs.structural_tag", "JSON"),
    ({"structured_outputs": {"jsn": {}}}, "structured_outputs.jsn", "is not supported"),
    ({"structured_outputs": {"whitespace_pattern": " *"}}, "structured_outputs.whitespace_pattern", "not supported"),
    ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs.regex", "one constraint only"),
    ({"guided_json": {}, "response_format": {"type": "json_object"}}, "guided_json", "one constraint only"),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "one constraint only"),
    ({"guided_json": "{"}, "guided_json", "not valid JSON"),
    ({"guided_choice": []}, "guided_choice", "non-empty"),
    ({"guided_regex": "(?=a)"}, "guided_regex", "lookaround"),
    ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "not supported"),
]


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    engine = FakeEngine()
    engine.script = engine.ids("canary")
    return engine


@pytest.fixture(scope="module")
def client(engine: FakeEngine) -> Client:
    """One app for all tests: each would start a process of its own."""
    return Client.of(engine)


def params_of(engine: FakeEngine) -> SamplingParams:
    return engine.calls[-1].params


@pytest.mark.parametrize("url", [COMPLETIONS, CHAT])
@pytest.mark.parametrize(("fields", "grammar"), GRAMMARS, ids=lambda value: repr(value)[:50])
def test_a_constraint_reaches_the_engine_as_a_grammar(
    engine: FakeEngine, client: Client, url: str, fields: dict[str, Any], grammar: str | None
):
    response = client.post(url, {**BODIES[url], **fields})
    assert response.status_code == 200, response.text
    assert params_of(engine).grammar == grammar


@pytest.mark.parametrize("place", ["response_format", "structured_outputs", "body"])
def test_a_structural_tag_reaches_the_engine_as_a_grammar(engine: FakeEngine, client: Client, place: str):
    tag = {"type": "structural_tag", **TAGS}
    fields = {
        "response_format": {"response_format": tag},
        "structured_outputs": {"structured_outputs": {"structural_tag": json.dumps(tag)}},
        "body": {"structural_tag": tag},
    }[place]
    assert client.post(CHAT, {**BODIES[CHAT], **fields}).status_code == 200
    assert params_of(engine).grammar == (
        'start: (tag_0)* TEXT\nTEXT: /(?s:.*)/\ntrigger_0[lazy]: TEXT "<f>"\n'
        f'tag_0: trigger_0 (%json {{"const":1,{STYLE}}} "</f>" )'
    )


def test_every_choice_and_prompt_has_the_grammar_also_streamed(engine: FakeEngine, client: Client):
    num_calls = len(engine.calls)
    body = {"prompt": ["a", "b"], "n": 2, "seed": 1, "guided_regex": "x"}
    client.events(COMPLETIONS, body)
    assert [call.params.grammar for call in engine.calls[num_calls:]] == ["start: /x/"] * 4


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("url", [COMPLETIONS, CHAT])
@pytest.mark.parametrize(("fields", "param", "words"), REFUSED, ids=lambda value: repr(value)[:50])
def test_jsn_03_a_bad_constraint_is_refused_by_name(
    engine: FakeEngine, client: Client, url: str, fields: dict[str, Any], param: str, words: str, stream: bool
):
    num_calls = len(engine.calls)
    response = client.post(url, {**BODIES[url], **fields, "stream": stream})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["param"], error["code"], error["type"]) == (param, 400, "BadRequestError")
    assert words in error["message"]
    assert len(engine.calls) == num_calls  # refused before it costs anything


HOSTILE: list[dict[str, Any]] = [
    {"guided_grammar": "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(10_000)) + 'r10000: "a"\n'},
    {"guided_grammar": "start: " + '"a"? ' * 20_000},
    {"guided_grammar": 'start: A\nA: "a"{1000000}'},
    {"guided_regex": "a{1000000}"},
    {"guided_json": {"allOf": [{"anyOf": [{"required": [f"{i}{c}"]} for c in "ab"]} for i in range(20)]}},
    {"guided_json": '{"items":' * 20_000},
]


@pytest.mark.parametrize("fields", HOSTILE, ids=lambda value: repr(value)[:50])
def test_jsn_03_a_neighbour_is_served_on_time_beside_a_hostile_constraint(fields: dict[str, Any]):
    engine = FakeEngine(delay=0.001)
    engine.script = engine.ids("canary")

    async def scenario(running: Running) -> None:
        hostile = asyncio.create_task(running.client.post(COMPLETIONS, json={**BODIES[COMPLETIONS], **fields}))
        longest = 0.0
        while not hostile.done():
            start = time.perf_counter()
            canary = await running.client.post(COMPLETIONS, json={"prompt": "hi", "temperature": 0})
            assert canary.json()["choices"][0]["text"] == "canary"
            longest = max(longest, time.perf_counter() - start)
        assert (await hostile).status_code == 400
        assert longest < 1.0

    assert serving(engine, scenario) == 0


def test_the_compiler_ends_with_the_server():
    engine = FakeEngine()

    async def scenario(running: Running) -> None:
        response: httpx.Response = await running.client.post(COMPLETIONS, json={"prompt": "hi", "guided_regex": "a"})
        assert response.status_code == 200

    assert serving(engine, scenario) == 0
