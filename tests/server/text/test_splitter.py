"""Reasoning and calls are found in a text wherever it is cut, and what is neither stays text."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asynclane.server.text.reasoning import REASONING_FORMATS
from asynclane.server.text.splitter import AnswerSplitter, CallPart, CallRules, Reasoning, Text
from asynclane.server.text.tool_calls import TOOL_FORMATS, read_call, read_gemma_call

from ...support.scale import ALL

NAMES = frozenset(("get_weather", "get_time"))
THINK = REASONING_FORMATS["think"]
HERMES, PLAIN, GEMMA = (TOOL_FORMATS[name] for name in ("hermes", "json", "gemma"))


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


PARIS, TIME = hermes("get_weather", '{"city": "Paris"}'), hermes("get_time", '{"x": ["</tool_call>", "a\\"b\\\\"]}')
CALLS = [("get_weather", '{"city": "Paris"}'), ("get_time", '{"x": ["</tool_call>", "a\\"b\\\\"]}')]


def split(pieces: list[str], **options: Any) -> tuple[str, str, list[tuple[str, str]], list[Any]]:
    """The reasoning, the text, the calls, and all parts."""
    splitter = AnswerSplitter(**options)
    parts = [part for piece in pieces for part in splitter.feed(piece)] + splitter.end()
    calls: dict[int, list[str]] = {}
    for part in parts:
        if isinstance(part, CallPart):
            if part.index not in calls:
                assert part.id.startswith("call_")
                assert part.name
                calls[part.index] = [part.name, ""]
            else:
                assert not part.id
            calls[part.index][1] += part.arguments
    assert list(calls) == list(range(len(calls)))
    reasoning = "".join(part.text for part in parts if isinstance(part, Reasoning))
    text = "".join(part.spaced for part in parts if isinstance(part, Text))
    return reasoning, text, [(name, arguments) for name, arguments in calls.values()], parts


def cut(text: str, places: set[int]) -> list[str]:
    ends = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[a:b] for a, b in pairwise(ends)]


GEMMA_TIME = "<|tool_call>call:get_time{}<tool_call|>"
GEMMA_DEEP = GEMMA_TIME.replace("{}", "{a:" * 65 + "1" + "}" * 65)
NESTED = {depth: '{"a": ' * (depth - 1) + "{}" + "}" * (depth - 1) for depth in (64, 65)}
# (form, text, (reasoning, text, calls)): with the form's marks in places where they are none, too.
CASES: list[tuple[Any, str, tuple[str, str, list[tuple[str, str]]]]] = [
    (HERMES, "Hello.\n", ("", "Hello.\n", [])),
    (HERMES, PARIS, ("", "", CALLS[:1])),
    (HERMES, f"Let me look. \n{PARIS}\n{TIME}\n", ("", "Let me look.", CALLS)),
    (HERMES, f"hi{PARIS}there", ("", "hi\nthere", CALLS[:1])),
    (HERMES, f"hi {PARIS} {TIME} \nthere\n{PARIS}\n<tool_call>", ("", "hi\nthere\n<tool_call>", [*CALLS, CALLS[0]])),
    (HERMES, hermes("get_time", '{"a": "\\ud83d"}'), ("", hermes("get_time", '{"a": "\\ud83d"}'), [])),
    (HERMES, hermes("get_time", NESTED[64]), ("", "", [("get_time", NESTED[64])])),
    (HERMES, hermes("get_time", NESTED[65]), ("", hermes("get_time", NESTED[65]), [])),
    (HERMES, f"<think>\nHm, {PARIS} \n</think>\n\n{PARIS} So.", (f"Hm, {PARIS}", "So.", CALLS[:1])),
    (HERMES, f"<think>{PARIS}", (PARIS, "", [])),
    (HERMES, f"a <think>b</think> {PARIS}", ("", "a <think>b</think>", CALLS[:1])),
    (HERMES, " <thin", ("", " <thin", [])),
    (HERMES, f"a <tool_call> b {PARIS}", ("", "a <tool_call> b", CALLS[:1])),
    (HERMES, f"a\n{PARIS[:40]}", ("", f"a\n{PARIS[:40]}", [])),
    (HERMES, hermes("no_tool", "{}"), ("", hermes("no_tool", "{}"), [])),
    (HERMES, hermes("get_time", "5"), ("", hermes("get_time", "5"), [])),
    (HERMES, hermes("get_time", '{"a": NaN}'), ("", hermes("get_time", '{"a": NaN}'), [])),
    (HERMES, PARIS.replace("}}", "}"), ("", PARIS.replace("}}", "}"), [])),
    (HERMES, PARIS.removesuffix("l_call>"), ("", "", CALLS[:1])),
    (HERMES, f'<tool_call>{{"a{PARIS}', ("", '<tool_call>{"a', CALLS[:1])),
    (
        HERMES,
        '<tool_call>{"arguments":{"a":1.50},"name":"get_time"}</tool_call>',
        ("", "", [("get_time", '{"a":1.50}')]),
    ),
    (PLAIN, ' {"name": "get_time", "parameters": {"x": 1}}', ("", "", [("get_time", '{"x": 1}')])),
    (
        PLAIN,
        '{"name": "get_time", "parameters": {}}; {"name": "get_weather", "parameters": {}}',
        ("", "", [("get_time", "{}"), ("get_weather", "{}")]),
    ),
    (PLAIN, '{"name": "x", "parameters": {}} {"n', ("", '{"name": "x", "parameters": {}} {"n', [])),
    (PLAIN, 'I: {"name": "get_time", "parameters": {}}', ("", 'I: {"name": "get_time", "parameters": {}}', [])),
    (
        GEMMA,
        'Yes. <|tool_call>call:get_weather{city:<|"|>Pa}r,is<|"|>,n:[1,-2.5,{a:true}],"b c":null}<tool_call|>',
        ("", "Yes.", [("get_weather", '{"city": "Pa}r,is", "n": [1, -2.5, {"a": true}], "b c": null}')]),
    ),
    (GEMMA, f"a{GEMMA_TIME}b", ("", "a\nb", [("get_time", "{}")])),
    (GEMMA, GEMMA_DEEP, ("", GEMMA_DEEP, [])),
    (GEMMA, f"{GEMMA_TIME}<|tool_call>call:get_time{{}}", ("", "", [("get_time", "{}")] * 2)),
    (GEMMA, "<|tool_call>call:get_time{x:", ("", "<|tool_call>call:get_time{x:", [])),
    (
        GEMMA,
        '<|tool_call>call:get_time{x:<|"|>a<tool_call|>b<|"|>}<tool_call|>',
        ("", "", [("get_time", '{"x": "a<tool_call|>b"}')]),
    ),
    (GEMMA, "<|tool_call>call:get_time{x:}<tool_call|>", ("", "<|tool_call>call:get_time{x:}<tool_call|>", [])),
]  # fmt: skip


@pytest.mark.parametrize(("form", "text", "expected"), CASES, ids=lambda value: getattr(value, "name", None))
def test_the_parts_add_up_to_the_same_wherever_the_text_is_cut(form: Any, text: str, expected: Any) -> None:
    options = {"reasoning": THINK, "calls": CallRules(form, NAMES)}
    assert split([text], **options)[:3] == expected
    for place in range(len(text)):
        assert split([text[:place], text[place:]], **options)[:3] == expected
    assert split(list(text), **options)[:3] == expected


PIECES = st.lists(
    st.sampled_from(
        [PARIS, TIME, "<tool_call>", "</tool_call>", "<think>", "</think>", "\n", " ", "{", "}", '"', "\\", "a", ",",
         '{"name": "get_time", "arguments": {', hermes("get_time", "{}")]
    ),
    max_size=8,
).map("".join)  # fmt: skip


@given(text=PIECES, places=st.sets(st.integers(0, 400), max_size=30), early=st.booleans(), inside=st.booleans())
@settings(max_examples=500 if ALL else 100, deadline=None)
def test_any_text_has_the_same_parts_wherever_it_is_cut(text: str, places: set[int], early: bool, inside: bool) -> None:
    options: dict[str, Any] = {"reasoning": THINK, "inside": inside, "calls": CallRules(HERMES, NAMES, early=early)}
    whole, pieces = split([text], **options), split(cut(text, places), **options)
    assert whole[:3] == pieces[:3]
    if not early:
        assert all(isinstance(json.loads(arguments), dict) for _, arguments in whole[2])


@pytest.mark.parametrize("form", [HERMES, PLAIN], ids=["hermes", "json"])
def test_arguments_that_a_grammar_writes_are_sent_as_they_come(form: Any) -> None:
    opened = f'{form.open}{form.gap}{{"name": "get_weather", "{form.arguments}": '
    splitter = AnswerSplitter(calls=CallRules(form, NAMES, early=True))
    assert splitter.feed(opened) == []
    (named, first) = splitter.feed('{"city": "Pa')
    assert (named.name, first.arguments) == ("get_weather", '{"city": "Pa')
    assert [part.arguments for part in splitter.feed("ris\\")] == ["ris"]
    assert [part.arguments for part in splitter.feed('n"}')] == ['\\n"}']
    splitter.feed("}" + form.gap + form.close)
    assert splitter.end() == []
    assert (splitter.calls, splitter.broken) == (1, False)


def test_a_call_that_is_cut_off_is_known_as_broken() -> None:
    splitter = AnswerSplitter(calls=CallRules(HERMES, NAMES, early=True))
    splitter.feed(PARIS[:60])
    splitter.end()
    assert (splitter.calls, splitter.broken) == (1, True)


def test_calls_beyond_the_most_are_left_out() -> None:
    assert split([f"{PARIS}\n{TIME}"], calls=CallRules(HERMES, NAMES, most=1))[:3] == ("", "", CALLS[:1])


def test_reasoning_that_the_prompt_has_opened_ends_at_its_mark() -> None:
    splitter = AnswerSplitter(THINK, inside=True)
    assert splitter.feed("\nI see") == [Reasoning("I see")]
    assert splitter.reasons
    assert splitter.feed(" \n</think>\n\n5") == [Text("5")]
    assert not splitter.reasons
    assert splitter.reasoning_chars == len("\nI see \n</think>")


@pytest.mark.parametrize(
    "text",
    ["", "{", "{}", '{"name"', '{"name": 5, "arguments": {}}', '{"name": "get_time", "arguments": [1]}', '{5: 1}',
     '{"name": "get_time"}', "[" * 100_000, '{"a": ' * 100_000, '{"name" "get_time"}'],
    ids=range(11),
)  # fmt: skip
def test_what_is_no_call_is_none(text: str) -> None:
    assert read_call(text, NAMES) is None
    assert read_gemma_call(text, NAMES) is None
    assert read_gemma_call(f"call:get_time{{a:{text}", NAMES) is None
