"""Grammars say what may come next, where an answer may end, and how it ends when there is hardly room left."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from asynclane.server.errors import InvalidValue
from asynclane.server.structured import grammar
from asynclane.server.structured.grammar import (
    KEPT,
    LONGEST_END,
    GrammarConstraint,
    Grammars,
    Wanted,
)
from asynclane.server.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def grammars(text: Tokenizer) -> Grammars:
    return Grammars(text)


async def constraint(grammars: Grammars, **wanted: str) -> GrammarConstraint:
    return grammars.constraint(await grammars.compile(Wanted("response_format", **wanted)))


def tokens_of(words: np.ndarray) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist())


def at_random(made: GrammarConstraint, text: Tokenizer, room: int, rng: random.Random) -> tuple[list[int], bool]:
    """An answer of tokens that are drawn evenly from what is allowed, and whether it came to its end."""
    said: list[int] = []
    while len(said) < room:
        for token in made.forced(room - len(said)):
            assert made.accept(token, room - len(said))
            said.append(token)
        if made.finished:
            break
        token = rng.choice(sorted(tokens_of(made.allowed())))
        if token in text.end_ids:
            assert made.complete
            return said, True
        if made.accept(token, room - len(said)):
            said.append(token)
        else:
            assert made.closing
    return said, made.finished


async def test_what_is_forced_needs_no_network_and_an_end_may_come_only_where_the_grammar_has_one(
    grammars: Grammars, text: Tokenizer
) -> None:
    made = await constraint(grammars, schema=json.dumps(PERSON))
    opening = made.forced(100)
    assert text.decode(opening) == '{"age": '
    assert all(made.accept(token, 100) for token in opening)
    assert {text.pieces[token] for token in tokens_of(made.allowed())} == set("0123456789")
    assert not made.complete
    for token in text.encode("7}", specials=False):
        assert made.accept(token, 100)
    assert made.finished
    assert tokens_of(made.allowed()) == set(text.end_ids)


async def test_a_token_that_may_not_come_changes_nothing(grammars: Grammars, text: Tokenizer) -> None:
    made = await constraint(grammars, regex="[0-9]+")
    (seven,), (word,) = text.encode("7", specials=False), text.encode(" the", specials=False)
    assert not made.accept(word, 100)
    assert made.accept(seven, 100)
    assert not made.accept(word, 100)
    assert made.complete


@pytest.mark.parametrize("room", [20, 24, 40, 90])
async def test_an_answer_without_room_is_closed_and_still_parses(
    grammars: Grammars, text: Tokenizer, room: int
) -> None:
    rng = random.Random(room)
    for _ in range(20):
        made = await constraint(grammars, schema=json.dumps(RAMBLE))
        said, ended = at_random(made, text, room, rng)
        assert ended
        assert isinstance(json.loads(text.decode(said)), dict)


@pytest.mark.parametrize(
    "pattern", ["[a-c]{2,5}", "(yes|no|maybe)!?", "a*b+c?", r"\d{3}-[x-z]", "(ab|a)(bc|c)", "é+.?"]
)
async def test_any_way_through_a_grammar_matches_it(grammars: Grammars, text: Tokenizer, pattern: str) -> None:
    rng = random.Random(pattern)
    for _ in range(20):
        made = await constraint(grammars, regex=pattern)
        said, ended = at_random(made, text, 60, rng)
        assert not ended or re.fullmatch(pattern, text.decode(said)), text.decode(said)


async def test_a_choice_is_text_and_no_pattern(grammars: Grammars, text: Tokenizer) -> None:
    options = ["a.b", 'c"/\\d+', "line\nbreak", "(", "日本"]
    made = await grammars.compile(Wanted("guided_choice", choice=tuple(options)))
    seen = set()
    for number in range(60):
        answer = grammars.constraint(made)
        said, ended = at_random(answer, text, 40, random.Random(number))
        assert ended
        seen.add(text.decode(said))
    assert seen <= set(options)
    assert len(seen) > 2


async def test_only_so_many_compiled_grammars_are_kept_and_the_same_one_is_compiled_once(text: Tokenizer) -> None:
    grammars = Grammars(text)
    first = Wanted("guided_regex", regex="a{0}b")
    await grammars.compile(first)
    kept = grammars._compiled(first)
    assert grammars._compiled(Wanted("structured_outputs.regex", regex="a{0}b")) is kept
    for number in range(KEPT):
        await grammars.compile(Wanted("guided_regex", regex=f"x{{{number}}}y"))
    assert len(grammars._known) == KEPT
    assert grammars._compiled(first) is not kept


@pytest.mark.parametrize(
    "wanted",
    [
        {"regex": "a{4294967295}"},
        {"regex": "(" * 3000 + ")" * 3000},
        {"schema": '{"a":' * 3000 + "1" + "}" * 3000},
        {"choice": tuple(f"choice {number}" for number in range(100_000))},
        {"schema": json.dumps({"allOf": [{"type": "string", "pattern": f"^[a-z]{{0,200}}{n}.*$"} for n in range(20)]})},
    ],
    ids=["repeats", "brackets", "deep", "choices", "intersection"],
)
async def test_a_grammar_that_is_too_complex_is_refused_in_bounded_time(
    grammars: Grammars, wanted: dict[str, str]
) -> None:
    started = time.thread_time()
    with pytest.raises(InvalidValue) as refused:
        await grammars.compile(Wanted("response_format", **wanted))
    assert refused.value.param == "response_format"
    assert len(refused.value.message) < 400
    assert time.thread_time() - started < 0.1, "it was computed on the event loop"


PERSON = {"type": "object", "properties": {"age": {"type": "integer", "minimum": 0}}, "required": ["age"]}
PERSON["additionalProperties"] = False
RAMBLE = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "list": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "number"}}}},
    },
    "required": ["text", "list"],
}


INTEGER = {"type": "integer"}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": INTEGER, "minItems": 1000},
        {"type": "array", "items": {"type": "string", "maxLength": 5}, "minItems": 60},
        {"type": "string", "pattern": "ab"},
    ],
    ids=["no end in reach", "an end far away", "an end that is not seen"],
)
async def test_looking_for_an_end_is_bounded(
    grammars: Grammars, text: Tokenizer, schema: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is done on the event loop: in any 32 tokens, which one step may commit, a few of the longest ways."""
    walked, since = 0, [0]

    def counted(trial: Any, closers: Sequence[int], limit: int) -> list[int] | None:
        nonlocal walked
        way = shortest_end(trial, closers, limit)
        walked += limit if way is None else len(way)
        return way

    shortest_end = grammar.shortest_end
    made = await constraint(grammars, schema=json.dumps(schema))
    monkeypatch.setattr(grammar, "shortest_end", counted)
    room, rng = 500, random.Random(1)
    while room and not made.finished:
        forced = made.forced(room)
        allowed = sorted(tokens_of(made.allowed()) - set(text.end_ids))
        for token in forced or [rng.choice(allowed)]:
            room -= made.accept(token, room)
            since.append(walked)
    assert walked
    assert max(later - before for before, later in zip(since, since[32:], strict=False)) < 6 * LONGEST_END


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"regex": "("}, "not an expression that can be read: unclosed group"),
        ({"regex": "[z-a]"}, "not an expression that can be read: invalid character class range"),
        ({"regex": "(?=a)b"}, "look-around is not supported"),
        ({"regex": r"\bfoo"}, "anchors and word boundaries"),
        ({"regex": "(" * 3000 + ")" * 3000}, "not an expression that can be read: exceed"),
        ({"regex": "(a?){5000}a{5000}"}, "it is too complex"),
        ({"schema": {"pattern": "("}}, "not an expression that can be read: unclosed group"),
        ({"schema": {"type": "nothing"}}, "there is no type 'nothing'"),
        ({"schema": {"uniqueItems": True, "not": {}}}, 'cannot be enforced: "not", "uniqueItems"'),
        ({"schema": {"format": "idn-email"}}, "the format 'idn-email' cannot be enforced"),
        ({"schema": {"oneOf": [INTEGER, {"type": "number"}]}}, "oneOf whose options overlap"),
        ({"schema": {"$ref": "http://127.0.0.1/x"}}, "references lead within the schema only"),
        ({"schema": {"$ref": "#/definitions/none"}}, "which does not exist"),
        ({"schema": {"minItems": -1}}, "minItems must be a whole number from 0, not -1"),
        ({"schema": {"enum": 5}}, "enum must be a list"),
        ({"schema": {"enum": []}}, "no text can be so"),
        ({"schema": {"type": "integer", "multipleOf": 982451653}}, "it is too complex"),
        ({"schema": {"type": "integer", "minimum": 5, "maximum": 3}}, "no text can be so: minimum (5) is greater"),
        ({"schema": {"$ref": "#"}}, "no text can be so"),
        # Keywords that the library would enforce differently.
        ({"schema": {"exclusiveMinimum": 0, "exclusiveMaximum": 0.001}}, "exclusiveMinimum 0 cannot be enforced"),
        ({"schema": {"items": {"exclusiveMinimum": 5, "maximum": 5.000001}}}, "exclusiveMinimum 5 cannot be enforced"),
        ({"schema": {"type": "object", "minProperties": 2}}, "minProperties above 1 cannot be enforced"),
        ({"schema": {"x-guidance": {"whitespace_flexible": True}}}, "x-guidance is not a keyword here"),
    ],
    ids=str,
)
async def test_why_a_grammar_cannot_be_is_said_without_the_words_of_a_library(
    grammars: Grammars, wanted: dict[str, Any], message: str
) -> None:
    given = {name: value if isinstance(value, str) else json.dumps(value) for name, value in wanted.items()}
    with pytest.raises(InvalidValue) as refused:
        await constraint(grammars, **given)
    assert message in refused.value.message
    assert not re.search(r"Unimplemented|Unsatisfiable|start: /|parse error|fuel|lexer|coerce", refused.value.message)


def integers(*names: str) -> dict[str, object]:
    return {
        "type": "object",
        "properties": dict.fromkeys(names, INTEGER),
        "required": list(names),
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    "schema",
    [
        integers("eggs", "found", "total", "left", "days"),
        {"type": "array", "items": INTEGER, "minItems": 2},
        {"type": "array", "prefixItems": [INTEGER, {"const": "x"}], "items": False, "minItems": 2},
        {"type": "object", "properties": {"a": {"type": "number"}, "b": {"enum": ["x", "y"]}}, "required": ["a", "b"]},
    ],
    ids=["object", "array", "tuple", "number"],
)
async def test_an_answer_is_closed_only_when_its_room_is_used(
    grammars: Grammars, text: Tokenizer, schema: object
) -> None:
    """Numbers that would go on for ever, each digit followed by another, are cut at the end and not at the start."""
    made = await constraint(grammars, schema=json.dumps(schema))
    room, (one,) = 60, text.encode("1", specials=False)
    said: list[int] = []
    while not made.finished and len(said) < room:
        forced = made.forced(room - len(said))
        for token in forced:
            assert made.accept(token, room - len(said))
            said.append(token)
        if made.finished or forced:
            continue
        allowed = tokens_of(made.allowed())
        token = one if one in allowed else min(allowed - set(text.end_ids))
        if made.accept(token, room - len(said)):
            said.append(token)
    json.loads(text.decode(said))
    assert not made.closing or len(said) > room * 0.8


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "number", "exclusiveMinimum": 0},
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 3},
        {
            "type": "object",
            "minProperties": 1,
            "properties": {"x-guidance": INTEGER, "minProperties": INTEGER},
            "required": ["x-guidance", "minProperties"],
        },
        {"const": {"minProperties": 5}},
    ],
)
async def test_bounds_and_names_that_are_fine_are_taken(grammars: Grammars, schema: object) -> None:
    assert await constraint(grammars, schema=json.dumps(schema))
