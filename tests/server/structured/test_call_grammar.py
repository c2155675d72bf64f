"""Whatever is drawn along the grammar of calls, each call parses and its arguments follow the tool's schema."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from asynclane.server.errors import InvalidValue
from asynclane.server.schema.tools import Tool
from asynclane.server.structured.call_grammar import CallGrammar
from asynclane.server.structured.grammar import Grammars, Wanted
from asynclane.server.text.splitter import AnswerSplitter, CallPart, CallRules, Text
from asynclane.server.text.tokenizer import Tokenizer
from asynclane.server.text.tool_calls import TOOL_FORMATS, ToolFormat

from ...support.grammars import at_random
from ...support.scale import ALL
from ...support.tools import CITY, random_tools

HELD = [form for form in TOOL_FORMATS.values() if not form.gemma]
SETS = int(os.environ.get("TOOL_SETS", "60" if ALL else "30"))  # random sets of tools; 300 take 16 s
ROOM = 400


@pytest.fixture(scope="module")
def grammars(text: Tokenizer) -> Iterator[Grammars]:
    made = Grammars(text)
    yield made
    made.close()


def wanted(form: ToolFormat, schemas: dict[str, str], **options: Any) -> Wanted:
    tools = tuple((at, name, schema) for at, (name, schema) in enumerate(schemas.items()))
    marks = form.open, form.close, form.gap, form.arguments, form.between
    return Wanted("tools", calls=CallGrammar(*marks, tools, **options).job())


def read(form: ToolFormat, names: Any, text: str) -> tuple[str, list[tuple[str, str]]]:
    """The text besides the calls, and the calls."""
    splitter = AnswerSplitter(calls=CallRules(form, names))
    parts = [*splitter.feed(text), *splitter.end()]
    calls: dict[int, tuple[str, str]] = {}
    for part in parts:
        if isinstance(part, CallPart):
            name, arguments = calls.get(part.index, ("", ""))
            calls[part.index] = name + part.name, arguments + part.arguments
    return "".join(part.text for part in parts if isinstance(part, Text)), list(calls.values())


@pytest.mark.parametrize("seed", range(SETS))
async def test_each_call_of_a_random_tool_parses_and_validates(grammars: Grammars, text: Tokenizer, seed: int) -> None:
    r = random.Random(seed)
    form = HELD[seed % len(HELD)]
    tools = [Tool.model_validate(tool).function for tool in random_tools(r)]
    schemas = {tool.name: tool.schema_text() for tool in tools}
    several = bool(seed % 3)
    made = grammars.constraint(await grammars.compile(wanted(form, schemas, several=several)))
    likely = frozenset('abcdefghijklmnopqrstuvwxyz0123456789 "{}[],:-')
    said, ended = at_random(made, text, ROOM, r, likely)
    assert ended
    rest, calls = read(form, schemas, text.decode(said))
    assert rest == ""
    assert calls
    assert several or len(calls) == 1
    for name, arguments in calls:
        schema = json.loads(schemas[name])
        checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
        jsonschema.Draft202012Validator(schema, format_checker=checker).validate(json.loads(arguments))


def fits(made: Any, text: Tokenizer, said: str) -> bool:
    """True if an answer may be this text."""
    return all(made.accept(token, ROOM) for token in text.encode(said, specials=False)) and made.complete


CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


@pytest.mark.parametrize(
    ("form", "said", "fit"),
    [
        ("hermes", "", True),
        ("hermes", "Hello, <tool_c", True),
        ("hermes", 'She said {"a": 1, "a": 2}, "b', True),
        ("hermes", CALL, True),
        ("hermes", f"I look.\n{CALL}\n{CALL} Done.", True),
        ("hermes", f"I look.\n{CALL.replace('city', 'town')}", False),
        ("hermes", f"I look.\n{CALL.replace('get_weather', 'get_whether')}", False),
        ("hermes", "I look. <tool_call> no", False),
        ("json", "Hello {}", True),
        ("json", '{"name": "get_weather", "parameters": {"city": "Paris"}}', True),
        ("json", '{"name": "get_weather", "parameters": {"town": "Paris"}}', False),
        ("json", " {} ", False),
    ],
)
async def test_a_free_answer_has_any_text_and_whole_calls(
    grammars: Grammars, text: Tokenizer, form: str, said: str, fit: bool
) -> None:
    compiled = await grammars.compile(wanted(TOOL_FORMATS[form], {"get_weather": json.dumps(CITY)}, free=True))
    assert fits(grammars.constraint(compiled), text, said) is fit


@pytest.mark.parametrize("form", [form.name for form in HELD])
async def test_an_answer_with_a_format_is_calls_or_of_this_format(
    grammars: Grammars, text: Tokenizer, form: str
) -> None:
    marks = TOOL_FORMATS[form]
    schemas = {"get_weather": json.dumps(CITY), "now": '{"type": "object"}'}
    counted = json.dumps({"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]})
    made = await grammars.compile(wanted(marks, schemas, answer=counted))
    call = f'{marks.gap}{{"name": "get_weather", "{marks.arguments}": {{"city": "Paris"}}}}{marks.gap}'
    call = f"{marks.open}{call}{marks.close}"
    for said, fit in {
        call: True,
        '{"count": 3}': True,
        '{"count": 3, "a": {"b": 1}}': True,
        '{"count": 3, "count": 4}': False,
        call.replace("Paris", "3").replace("city", "count"): False,
        "": False,
        "Three.": False,
        f'{{"count": 3}}{call}': False,
    }.items():
        assert fits(grammars.constraint(made), text, said) is fit, said


async def test_one_call_is_the_most_if_there_may_not_be_several(grammars: Grammars, text: Tokenizer) -> None:
    schemas = {"get_weather": json.dumps(CITY)}
    for free in (False, True):
        one = await grammars.compile(wanted(TOOL_FORMATS["hermes"], schemas, several=False, free=free))
        more = await grammars.compile(wanted(TOOL_FORMATS["hermes"], schemas, free=free))
        assert fits(grammars.constraint(one), text, CALL)
        assert not fits(grammars.constraint(one), text, f"{CALL}\n{CALL}")
        assert fits(grammars.constraint(more), text, f"{CALL}\n{CALL}")


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "object", "uniqueItems": True}, "/uniqueItems is not supported"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/no"}}}, "does not exist"),
        ({"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}, "/properties/a"),
        ({"properties": {"a": {"exclusiveMinimum": 5, "maximum": 5.000001}}}, "exclusiveMinimum 5 cannot be enforced"),
    ],
)
async def test_the_tool_whose_schema_cannot_be_enforced_is_named(
    grammars: Grammars, schema: dict[str, Any], reason: str
) -> None:
    schemas = {"get_weather": json.dumps(CITY), "other": json.dumps(schema)}
    with pytest.raises(InvalidValue) as caught:
        await grammars.compile(wanted(TOOL_FORMATS["hermes"], schemas))
    assert caught.value.param == "tools.1.function.parameters"
    assert reason in caught.value.message
    assert "\n" not in caught.value.message


async def test_as_many_tools_as_there_may_be_compile_within_the_limits(grammars: Grammars) -> None:
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in "abcde"}, "required": ["a"]}
    await grammars.compile(wanted(TOOL_FORMATS["hermes"], {f"tool_{n}": json.dumps(schema) for n in range(128)}))
