"""Grammars say what may come next, where an answer may end, and how it ends when there is hardly room left."""

from __future__ import annotations

import asyncio
import json
import random
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from asynclane.server.errors import InvalidValue, Overloaded
from asynclane.server.structured import compiler, grammar, trial
from asynclane.server.structured.compiler import LONGEST_END, Walk
from asynclane.server.structured.grammar import GrammarConstraint, Grammars, Wanted
from asynclane.server.text.tokenizer import Tokenizer

from ...support import schema_bombs
from ...support.grammars import at_random, tokens_of
from ...support.http import TINY
from ...support.scale import ALL, part


@pytest.fixture(scope="module")
def grammars(text: Tokenizer) -> Iterator[Grammars]:
    made = Grammars(text)
    yield made
    made.close()


async def constraint(grammars: Grammars, **wanted: str) -> GrammarConstraint:
    return grammars.constraint(await grammars.compile(Wanted("response_format", **wanted)))


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


@pytest.mark.parametrize(
    ("said", "closer"),
    [
        ("", None),
        ('{"a": ', None),
        ('{"a": 7', ","),
        ('{"a": 7, "b": "', '"'),
        ('{"a": 7, "b": "}', '"'),
        ('{"a": 7, "b": "\\', None),
        ('{"a": 7, "b": "", "c": [', "]"),
        ('{"a": 7, "b": "", "c": ["", "x', '"'),
        ('{"a": 7, "b": "", "c": []', "}"),
    ],
)
async def test_what_comes_instead_of_an_end_closes_what_is_open(
    said: str, closer: str | None, grammars: Grammars, text: Tokenizer
) -> None:
    kinds = {"a": INTEGER, "b": {"type": "string"}, "c": {"type": "array", "items": {"type": "string"}}}
    schema = {"type": "object", "properties": {**kinds, "d": INTEGER}, "required": ["a", "b", "c"]}
    made = await constraint(grammars, schema=json.dumps({**schema, "additionalProperties": False}))
    for letter in said:
        (token,) = text.encode(letter, specials=False)
        assert made.accept(token, 100)
    found = made.closer(made.allowed())
    assert (None if found is None else text.pieces[found]) == closer


async def test_an_expression_has_nothing_that_closes(grammars: Grammars) -> None:
    made = await constraint(grammars, regex='"[a-z]+"}')
    assert made.closer(made.allowed()) is None


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


async def test_a_choice_of_tokens_is_one_of_them(grammars: Grammars, text: Tokenizer) -> None:
    """None is spelt with several tokens, and one that begins another is an answer, too."""
    options = [" tha", " that", "Tom", " eggs"]
    tokens = [text.encode(option, specials=False) for option in options]
    assert [len(ids) for ids in tokens] == [1] * len(options)
    made = await grammars.compile(Wanted("guided_choice", choice=tuple(options)))
    for (token,) in tokens:
        answer = grammars.constraint(made)
        bits = np.unpackbits(answer.allowed().view(np.uint8), bitorder="little")
        assert np.flatnonzero(bits).tolist() == sorted(one for (one,) in tokens)
        assert answer.forced(9) == []
        assert answer.accept(token, 9)
        assert answer.finished


def key_of(regex: str) -> tuple[object, ...]:
    """The place of an expression's result."""
    return tuple(Wanted("", regex=regex).job.values())


async def test_results_are_kept_up_to_a_number_and_a_size_and_refusals_too(
    text: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammars = Grammars(text, memory_mb=200)
    jobs: list[dict[str, Any]] = []
    run = grammars._trial.run

    def counted(job: dict[str, Any]) -> dict[str, Any]:
        jobs.append(job)
        return run(job)

    monkeypatch.setattr(grammars._trial, "run", counted)
    monkeypatch.setattr(grammar, "KEPT", 4)

    async def tried(regex: str) -> int:
        """The number of trials for an expression."""
        before = len(jobs)
        with suppress(InvalidValue):
            await grammars.compile(Wanted("guided_regex", regex=regex))
        return len(jobs) - before

    assert [await tried(regex) for regex in ("a{0}b", "a{0}b", "(", "(")] == [1, 0, 1, 0]
    assert [await tried(f"x{{{number}}}y") for number in range(4)] == [1] * 4
    assert await tried("a{0}b") == 1
    grammars._results[key_of("a{0}b")].result().bytes = 150 << 20
    assert [await tried("z"), await tried("a{0}b")] == [1, 0], "both fit"
    grammars._results.move_to_end(key_of("z"))
    grammars._results[key_of("z")].result().bytes = 100 << 20
    assert [await tried("zz"), await tried("a{0}b")] == [1, 1]
    grammars.close()


@pytest.mark.parametrize(
    "wanted",
    [
        {"regex": "a{4294967295}"},
        {"regex": "(" * 3000 + ")" * 3000},
        {"schema": '{"a":' * 3000 + "1" + "}" * 3000},
        {"choice": tuple(f"choice {number}" for number in range(100_000))},
        {"schema": json.dumps({"allOf": [{"type": "string", "pattern": f"^[a-z]{{0,200}}{n}.*$"} for n in range(20)]})},
        {"schema": json.dumps({"type": "object", "properties": {f"n{number}": {} for number in range(1500)}})},
    ],
    ids=["repeats", "brackets", "deep", "choices", "intersection", "names"],
)
async def test_a_grammar_that_is_too_complex_is_refused_in_bounded_time(
    grammars: Grammars, wanted: dict[str, str]
) -> None:
    started = time.thread_time()
    with pytest.raises(InvalidValue) as refused:
        await grammars.compile(Wanted("response_format", **wanted))
    assert refused.value.param == "response_format"
    assert len(refused.value.message) < 400
    assert "Current row" not in refused.value.message
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

    def counted(walk: Walk, limit: int) -> list[int] | None:
        nonlocal walked
        way = to_end(walk, limit)
        walked += limit if way is None else len(way)
        return way

    to_end = Walk.to_end
    made = await constraint(grammars, schema=json.dumps(schema))
    monkeypatch.setattr(Walk, "to_end", counted)
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
        ({"schema": {"uniqueItems": True}}, "response_format: /uniqueItems is not supported"),
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
        ({"schema": {"minProperties": 2, "patternProperties": {"^a$": {}}}}, "/minProperties above 1 is not supported"),
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
        {"enum": ["a\n\t\b\f\r", "é\\x01"]},
        {"type": "string", "pattern": "^a\\\\x01[^\\x00-\\x1f]\\t\\x0a\\u000d\\x08$"},
        {"type": "object", "properties": {"a\x01": INTEGER, "const": INTEGER, "pattern": INTEGER}},
    ],
)
async def test_bounds_and_names_that_are_fine_are_taken(grammars: Grammars, schema: object) -> None:
    assert await constraint(grammars, schema=json.dumps(schema))


UNWRITTEN: list[dict[str, Any]] = [
    {"const": "a\x01b"},
    {"const": {"a": [{"\x7f": 1}]}},
    {"enum": ["a", "\x00"]},
    *(
        {"pattern": f"^a{text}b$"}
        for text in ("\x1f", r"\x01", r"[\x01]", r"\u000b", r"\x{1}", r"\u{7F}", r"\v", r"\\\a")
    ),
    {"patternProperties": {r"^\x0e$": {}}},
]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"properties": {"a": {"type": "array", "uniqueItems": True}}}, "/properties/a/uniqueItems is not supported"),
        (
            {"properties": {"a": {"type": "object", "properties": {"b": {}}, "maxProperties": 3}}},
            "/properties/a/maxProperties is not supported where a declared name may be left out",
        ),
        (
            {"items": {"anyOf": [{"type": "string"}, {"type": "object", "properties": {"b": {}}, "minProperties": 2}]}},
            "/items/anyOf/1/minProperties is not supported where a declared name may be left out",
        ),
        ({"$defs": {"a/b": {"pattern": "("}}, "$ref": "#/$defs/a~1b"}, "/$defs/a~1b: not an expression"),
        ({"prefixItems": [{}, {"minLength": -1}]}, "/prefixItems/1/minLength must be a whole number"),
        ({"properties": {"not": {"type": "x"}}}, "/properties/not: there is no type 'x'"),
        (
            {"properties": {"a": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.001}}},
            "/properties/a/exclusiveMinimum 0 cannot be enforced",
        ),
        ({"properties": {"k" * 300: {"not": {}}}}, "/properties/" + "k" * 64 + ".../not is not supported"),
        ({"not": {}}, "/not is not supported"),
        *(
            ({"properties": {"a": value}}, f"/properties/a/{next(iter(value))} has a control character")
            for value in UNWRITTEN
        ),
    ],
)
async def test_a_refusal_names_the_place_in_the_schema(grammars: Grammars, schema: object, message: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        await constraint(grammars, schema=json.dumps(schema))
    assert refused.value.message.startswith(f"response_format: {message}")


@pytest.mark.parametrize("bomb", part(schema_bombs.ENDLESS, 3))
async def test_a_schema_that_takes_too_long_is_refused_while_others_are_served(text: Tokenizer, bomb: str) -> None:
    grammars = Grammars(text, timeout_s=0.5)
    schema = json.dumps(schema_bombs.ENDLESS[bomb])
    endless = asyncio.create_task(grammars.compile(Wanted("guided_json", schema=schema)))
    await asyncio.sleep(0)
    await grammars.compile(Wanted("response_format", schema=grammar.ANY_OBJECT))
    await grammars.compile(Wanted("guided_choice", choice=("yes", "no")))
    assert not endless.done()
    with pytest.raises(InvalidValue, match=r"guided_json: this schema takes longer than 0\.5 s to compile"):
        await endless
    await constraint(grammars, schema=json.dumps(PERSON))
    grammars.close()


async def test_a_schema_that_takes_too_much_memory_is_refused(text: Tokenizer) -> None:
    grammars = Grammars(text, timeout_s=60, memory_mb=32)
    with pytest.raises(InvalidValue, match="guided_json: this schema takes more than 32 MB to compile"):
        await grammars.compile(Wanted("guided_json", schema=json.dumps(schema_bombs.ENDLESS["intersection"])))
    await constraint(grammars, schema=json.dumps(PERSON))
    grammars.close()


async def test_those_who_wait_are_few_and_those_who_have_left_are_dropped(
    text: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar, "MAX_WAITING", 4)
    grammars = Grammars(text)
    begun, go_on = threading.Event(), threading.Event()
    jobs: list[str] = []

    def run(job: dict[str, Any]) -> dict[str, Any]:
        begun.set()
        go_on.wait()
        jobs.append(job["regex"])
        return {"refused": "no"}

    monkeypatch.setattr(grammars._trial, "run", run)

    def start(regex: str) -> asyncio.Task[Any]:
        return asyncio.create_task(grammars.compile(Wanted("guided_regex", regex=regex)))

    waiting = [start(regex) for regex in ("a", "b", "b", "c", "d")]
    await asyncio.to_thread(begun.wait)
    with pytest.raises(Overloaded, match="clients share 4 places for formats that wait"):
        await start("e")
    waiting[1].cancel()  # another waits for the same
    waiting[3].cancel()
    await asyncio.wait(waiting[1:4:2])
    waiting.append(start("e"))
    await asyncio.sleep(0)
    go_on.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [
        InvalidValue,
        asyncio.CancelledError,
        InvalidValue,
        asyncio.CancelledError,
        InvalidValue,
        InvalidValue,
    ]
    assert jobs == ["a", "b", "d", "e"]
    grammars.close()


async def test_a_client_whose_formats_take_long_delays_others_by_one_and_has_none_of_them_refused(
    text: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammars = Grammars(text)
    begun, go_on = threading.Event(), threading.Event()
    jobs: list[str] = []

    def run(job: dict[str, Any]) -> dict[str, Any]:
        begun.set()
        go_on.wait()
        jobs.append(job["regex"])
        return {"refused": "no"}

    monkeypatch.setattr(grammars._trial, "run", run)

    def start(client: str, regex: str) -> asyncio.Task[Any]:
        return asyncio.create_task(grammars.compile(Wanted("guided_regex", regex=regex), client))

    waiting = [start("many", f"a{number}") for number in range(grammar.MAX_WAITING)]
    await asyncio.to_thread(begun.wait)
    waiting += [start("few", "b"), start("other", "c")]
    with pytest.raises(Overloaded):
        await start("many", "d")
    go_on.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(result) for result in results} == {InvalidValue}
    assert len(jobs) == len(waiting)
    assert jobs.index("b") <= 3
    assert jobs.index("c") <= 3
    grammars.close()


async def test_refusals_are_kept_up_to_a_number_and_do_not_grow(
    text: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar, "KEPT", 4)
    grammars = Grammars(text)
    monkeypatch.setattr(grammars._trial, "run", lambda job: {"refused": "no"})
    for number in range(10):
        for _ in range(10):
            with pytest.raises(InvalidValue):
                await grammars.compile(Wanted("guided_regex", regex=f"a{number}"))
    assert len(grammars._results) == 4
    assert not grammars._readers
    for kept in grammars._results.values():
        error = kept.exception()
        assert error is not None
        assert error.__traceback__ is None
    grammars.close()


async def test_a_failure_of_the_moment_is_not_kept_and_drops_no_newer_result(
    text: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammars = Grammars(text)
    replies: list[dict[str, Any]] = [{"limit": trial.WAITED}, {"refused": "no"}]
    monkeypatch.setattr(grammars._trial, "run", lambda job: replies.pop(0))

    def start() -> asyncio.Task[Any]:
        return asyncio.create_task(grammars.compile(Wanted("guided_regex", regex="a")))

    first = start()
    await asyncio.sleep(0)
    failed = grammars._results[key_of("a")]
    wait([failed])  # the event loop stands: `first` has not read it when the next one comes
    second = start()
    results = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(result) for result in results] == [Overloaded, InvalidValue]
    assert list(grammars._results) == [key_of("a")]
    assert grammars._results[key_of("a")] is not failed
    grammars.close()


async def test_an_engine_has_only_grammars_that_are_ready(text: Tokenizer, grammars: Grammars) -> None:
    made = await grammars.compile(Wanted("guided_regex", regex="[a-f]{3}"))
    other = Grammars(text)  # as an engine in another process has
    with pytest.raises(InvalidValue, match="guided_regex: this grammar has not been compiled"):
        other.constraint(made)
    await other.ready(made)
    said, ended = at_random(other.constraint(made), text, 20, random.Random(1))
    assert ended
    assert re.fullmatch("[a-f]{3}", text.decode(said))
    other.close()


async def test_a_lexer_that_grows_is_replaced_and_ends_only_the_answers_that_share_it(
    text: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "MAX_LEXER_STATES", 5000)
    grammars = Grammars(text)
    schema = json.dumps(schema_bombs.ENDLESS_LEXER)
    made, rng = await constraint(grammars, schema=schema), random.Random(1)
    assert all(made.accept(token, 2000) for token in made.forced(2000))
    for _ in range(1000):
        words = made.allowed()
        if made.failed:
            break
        made.accept(rng.choice(sorted(token for token in tokens_of(words) if '"' not in text.pieces[token])), 2000)
    assert made.failed == "it is too complex"
    again = await constraint(grammars, schema=schema)
    again.allowed()
    assert not again.failed
    again._compiled.start.meter.spent_s = grammar.WORN_S + 1
    assert (await constraint(grammars, schema=schema))._compiled is not again._compiled
    grammars.close()


async def test_a_step_that_takes_too_long_ends_the_answer(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    made = await constraint(grammars, regex="[a-f]+z")
    monkeypatch.setattr(compiler, "MAX_STEP_S", -1.0)
    made.allowed()
    assert "a step took" in made.failed


ADDED = "<think>"
RESERVED = "reserved"


@pytest.fixture(scope="module")
def with_added_tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The embedded model's tokenizer with two added tokens that are not special."""
    folder: Path = tmp_path_factory.mktemp("added")
    for file in TINY.glob("*.json"):
        (folder / file.name).write_text(file.read_text())
    content = json.loads((folder / "tokenizer.json").read_text())
    first, size = content["added_tokens"][0], len(content["model"]["vocab"])
    for number, name in enumerate((ADDED, RESERVED)):
        content["added_tokens"].append({**first, "id": size + number, "content": name, "special": False})
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return Tokenizer(folder)


@pytest.mark.parametrize(
    "wanted",
    [
        {"choice": (ADDED + "x",)},
        {"choice": (f"a {RESERVED}.", "b<|eot_id|>")},
        {"regex": f"{ADDED}[0-9]"},
        {"schema": json.dumps({"const": f"{ADDED}<|mdm_mask|>{RESERVED}"})},
        {"schema": json.dumps({"type": "object", "properties": {ADDED: {"type": "boolean"}}, "required": [ADDED]})},
        {"schema": "{}"},
    ],
    ids=str,
)
async def test_the_text_of_an_added_token_is_spelt_with_others(
    with_added_tokens: Tokenizer, wanted: dict[str, Any]
) -> None:
    text = with_added_tokens
    grammars = Grammars(text)
    added = text.special_ids | {text.vocab_size - 1, text.vocab_size - 2}
    assert {text.pieces[token] for token in added} == {"", ADDED, RESERVED}
    for number in range(8):
        said, ended = at_random(await constraint(grammars, **wanted), text, 120, random.Random(number))
        assert ended
        assert not added & set(said)
        if "choice" in wanted:
            assert text.decode(said) in wanted["choice"]
    grammars.close()


def open_schema(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    """An open object of few and short names, so that they meet."""
    values: list[Any] = [{"type": "integer", "maximum": 9, "minimum": 0}, {"enum": ["a", "b"]}, {"type": "null"}]
    if depth:
        values.append(open_schema(rng, depth - 1))
    names = rng.sample(["a", "b", "}", ":", '"', "\\", "é", "a b", "\n", ""], rng.randint(0, 3))
    made: dict[str, Any] = {
        "type": "object",
        "properties": {name: rng.choice(values) for name in names},
        "additionalProperties": rng.choice([True, rng.choice(values)]),
        "required": rng.sample(names, rng.randint(0, len(names))),
    }
    if made["additionalProperties"] is not True and not depth:
        made["patternProperties"] = {"^[xy]$": {"type": "boolean"}}
    elif len(made["required"]) == len(names):
        made["minProperties"] = rng.randint(0, 4)
    return made


def unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs if not re.fullmatch("[xy]", name)]  # of patterns, with no other name left
    assert len(set(names)) == len(names), pairs
    return dict(pairs)


@pytest.mark.parametrize("seed", range(40 if ALL else 10))
async def test_an_open_object_validates_and_repeats_no_name(grammars: Grammars, text: Tokenizer, seed: int) -> None:
    rng = random.Random(seed)
    schema = open_schema(rng)
    for room in (60, 150, 300):
        made = await constraint(grammars, schema=json.dumps(schema))
        said, ended = at_random(made, text, room, rng, likely=frozenset('{}[]"\\abxy:,0'))
        answer = text.decode(said)
        if ended:
            jsonschema.validate(json.loads(answer, object_pairs_hook=unrepeated), schema)


async def test_a_name_comes_again_neither_as_it_is_nor_in_another_spelling(grammars: Grammars, text: Tokenizer) -> None:
    schema = {"type": "object", "properties": {"a": INTEGER}, "additionalProperties": {"type": "string"}}

    def accepted(answer: str, made: GrammarConstraint) -> str:
        for at, token in enumerate(tokens := text.encode(answer, specials=False)):
            if token not in tokens_of(made.allowed()) or not made.accept(token, 1000):
                return text.decode(tokens[:at])
        return answer

    for answer, expected in [
        ('{"\\u0061": "x"}', '{"\\'),
        ('{"a": 1, "a": "x"}', '{"a": 1, "a'),
        ('{"b": "x", "b": "y"}', '{"b": "x", "b'),
        ('{"b": "x", "bb": "y", "b', '{"b": "x", "bb": "y", "b'),
        ('{"b": "{\\"b", "c": "y"}', '{"b": "{\\"b", "c": "y"}'),
    ]:
        assert accepted(answer, await constraint(grammars, schema=json.dumps(schema))) == expected
    nested = '{"a": {"a": 1, "b": [{"a": 2}, {"a": 3, "a": 4}]}}'
    made = await constraint(grammars, schema=grammar.ANY_OBJECT)
    assert accepted(nested, made) == nested[: nested.index('": 4')]
