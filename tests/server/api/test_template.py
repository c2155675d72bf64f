"""Templates of completions: how their texts are read, what their answers contain, and what is refused."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import Any

import pytest

from asynclane.scheduler import RequestStats
from asynclane.server.engine.messages import Delta, Finish, Usage
from asynclane.server.text.tokenizer import Tokenizer

from ...support.fake_engine import FakeEngine
from ...support.http import CONTEXT, chunks_of, error_of

GAP = {"tokens": 2}
USAGE = Usage(5, RequestStats(forwards=2))


def ids(text: Tokenizer, part: str) -> list[int]:
    return text.encode(part, specials=False, plain=True)


def answer(text: Tokenizer, *parts: str | list[int], finish: Finish = Finish.LENGTH, cuts: int = 0) -> list[Delta]:
    """The deltas of a canvas, cut anywhere."""
    tokens = [token for part in parts for token in (ids(text, part) if isinstance(part, str) else part)]
    places = sorted(random.Random(cuts).sample(range(1, len(tokens)), min(cuts, len(tokens) - 1)))
    edges = [0, *places, len(tokens)]
    pieces = [tuple(tokens[a:b]) for a, b in pairwise(edges)]
    deltas = [Delta(text.decode(piece), token_ids=piece) for piece in pieces]
    return [*deltas, Delta("", finish, USAGE)]


async def fill(api: Any, engine: FakeEngine, template: list[Any], **options: Any) -> Any:
    async with api(engine) as client:
        return await client.complete(**{"prompt": None, "template": template, **options})


async def test_the_texts_are_prompt_canvas_and_suffix_and_count_as_prompt(api: Any, text: Tokenizer) -> None:
    engine = FakeEngine(answer(text, [70, 71], " then <|mask|>", [72, 73, 74], " end"))
    template = ["One ", "<|endoftext|>", GAP, " then <|mask|>", "", {"tokens": 3}, " end"]
    body = (await fill(api, engine, template, seed=4)).json()
    (prompt,), (options,) = engine.prompts, engine.options
    assert prompt == text.encode("One <|endoftext|>", plain=True)
    assert options.template == ((2, tuple(ids(text, " then <|mask|>"))), (3, ()))
    assert options.suffix == tuple(ids(text, " end"))
    given = [*prompt, *options.template[0][1], *options.suffix]
    assert not {*given[1:]} & (text.special_ids | text.end_ids)
    assert options.max_tokens == 5 + len(options.template[0][1])
    assert (options.min_tokens, options.seed) == (options.max_tokens, 4)  # no gap may end
    assert body["usage"]["prompt_tokens"] == len(given)
    assert body["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize("cuts", [0, 1, 3, 99])
async def test_a_stream_adds_up_to_the_whole_and_has_the_texts_as_they_were_given(
    api: Any, text: Tokenizer, cuts: int
) -> None:
    wide = ids(text, "ö")  # several tokens that make one character, cut by the end of a gap
    template = ["Ä ", {"tokens": 2}, "é then", {"tokens": len(wide)}, "!"]
    script = answer(text, wide[:1], [70], "é then", wide, cuts=cuts)
    engine = FakeEngine(script, script)
    whole = (await fill(api, engine, template)).json()["choices"][0]
    chunks = [chunk["choices"][0] for chunk in chunks_of(await fill(api, engine, template, stream=True))]
    assert "".join(chunk["text"] for chunk in chunks) == whole["text"]
    assert chunks[-1]["gaps"] == whole["gaps"]
    assert whole["text"] == "Ä " + whole["gaps"][0]["text"] + "é then" + "ö" + "!"
    assert [gap["tokens"] for gap in whole["gaps"]] == [2, len(wide)]
    assert whole["finish_reason"] == chunks[-1]["finish_reason"] == "stop"  # nothing was cut


async def test_only_a_last_gap_may_end_early_and_says_so(api: Any, text: Tokenizer) -> None:
    engine = FakeEngine(answer(text, [70, 71], " a", [72], finish=Finish.STOP))
    (choice,) = (await fill(api, engine, [GAP, " a", {"tokens": 9}])).json()["choices"]
    (options,) = engine.options
    assert options.min_tokens == 2 + len(options.template[0][1])
    assert (choice["text"], choice["finish_reason"]) == (text.decode([70, 71]) + " a" + text.decode([72]), "stop")
    assert [gap["tokens"] for gap in choice["gaps"]] == [2, 1]
    engine = FakeEngine(answer(text, [70, 71], " a", finish=Finish.STOP))
    (choice,) = (await fill(api, engine, [GAP, " a", {"tokens": 9}])).json()["choices"]
    assert choice["gaps"][1] == {"text": "", "tokens": 0}


async def test_the_whole_text_so_far_has_all_that_is_given(api: Any, text: Tokenizer) -> None:
    mask, (end, *_) = text.mask_id, sorted(text.end_ids)
    given = ids(text, " and ")
    shown = [(mask, 71, *given), (70, 71, *given, 72, mask, end, 74), (70, 71, *given, 72, 73, end, 74)]
    script = [Delta("", canvas=canvas) for canvas in shown] + answer(text, [70, 71], " and ", [72, 73])
    response = await fill(api, FakeEngine(script), ["A ", GAP, " and ", {"tokens": 4}], stream=True, diffusing=True)
    chunks = chunks_of(response)
    one, two, three, four = (text.decode([token]) for token in (70, 71, 72, 73))
    texts = [chunk["choices"][0]["text"] for chunk in chunks]
    assert texts[:3] == [f"A {two} and ", f"A {one}{two} and {three}", f"A {one}{two} and {three}{four}"]
    assert texts[-1] == texts[2]
    assert all(chunk["diffusing"] for chunk in chunks)
    assert "gaps" in chunks[-1]["choices"][0]


BAD: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("template", ["no gap"], {}),
    ("template", [], {}),
    ("template", [""], {}),
    ("template", "One", {}),  # type: ignore[list-item]
    ("template", [GAP, " a"] * 65, {}),
    ("template.1", ["a", 5], {}),
    ("prompt_logprobs", ["a", GAP], {"prompt_logprobs": 0}),
    ("template.1.tokens", ["a", {"tokens": 0}], {}),
    ("template.1.tokens", ["a", {"tokens": "8"}], {}),
    ("template.1.tokens", ["a", {}], {}),
    ("template.1.text", ["a", {"tokens": 8, "text": "b"}], {}),
    ("template.2", ["a", GAP, GAP], {}),
    ("template.3", ["a", GAP, "", GAP], {}),
    ("template", ["a", {"tokens": CONTEXT}], {}),
    ("template", ["a", {"tokens": 2**62}], {}),
    ("template", ["a " * 300, GAP], {}),
    ("template", ["a", GAP, " b" * 300, GAP], {}),
    ("prompt", ["a", GAP], {"prompt": "a"}),
    ("suffix", ["a", GAP], {"suffix": "a"}),
    ("echo", ["a", GAP], {"echo": True}),
    ("max_tokens", ["a", GAP], {"max_tokens": 9}),
    ("min_tokens", ["a", GAP], {"min_tokens": 1}),
    ("stop", ["a", GAP], {"stop": "b"}),
    ("stop_token_ids", ["a", GAP], {"stop_token_ids": [6]}),
    ("logprobs", ["a", GAP], {"logprobs": 1}),
    ("logprobs", ["a", GAP], {"logprobs": 0}),
    ("best_of", ["a", GAP], {"best_of": 2}),
    ("bad_words", ["a", GAP], {"bad_words": ["b"]}),
    ("response_format", ["a", GAP], {"response_format": {"type": "json_object"}}),
    ("likelihood", ["a", GAP], {"likelihood": "chain"}),
    ("diffusing", ["a", GAP], {"diffusing": True}),
]


@pytest.mark.parametrize(("param", "template", "options"), BAD, ids=str)
async def test_a_bad_template_is_refused_by_name(api: Any, param: str, template: Any, options: dict[str, Any]) -> None:
    engine = FakeEngine()
    error = error_of(await fill(api, engine, template, **options), 400)
    assert error["param"] == param
    assert engine.prompts == []


async def test_without_a_prompt_or_template_one_is_missing(api: Any) -> None:
    async with api() as client:
        error = error_of(await client.raw("/v1/completions", json.dumps({"max_tokens": 3})), 400)
        chat = error_of(await client.chat(template=["a", GAP]), 400)
    assert (error["param"], error["code"]) == ("prompt", "missing_parameter")
    assert chat["message"] == "template: only /v1/completions has it"
