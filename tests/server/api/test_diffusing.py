"""`diffusing`: each chunk has the whole text so far, which replaces that of the chunk before it."""

from __future__ import annotations

from typing import Any

import pytest

from asynclane.server.engine.messages import Delta, Finish
from asynclane.server.text.tokenizer import Tokenizer

from ...support.fake_engine import USAGE, FakeEngine
from ...support.http import chunks_of, error_of

OPTIONS: dict[str, Any] = {"stream": True, "diffusing": True}


def script(text: Tokenizer, *canvases: str | list[int], final: str = "one two", cut: int = 3) -> list[Delta]:
    """Deltas with these canvases, in which `_` is a mask, and with a final text that comes in two pieces."""
    shown = [
        tuple(token for part in canvas.split("_") for token in (*text.encode(part, specials=False), text.mask_id))[:-1]
        if isinstance(canvas, str)
        else tuple(canvas)
        for canvas in canvases
    ]
    deltas = [Delta("", canvas=canvas) for canvas in shown]
    return [*deltas[:-1], Delta(final[:cut], canvas=shown[-1]), Delta(final[cut:], Finish.STOP, USAGE)]


def texts_of(chunks: list[dict[str, Any]], index: int = 0) -> list[str]:
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return [choice["text"] if "text" in choice else choice["delta"].get("content", "") for choice in choices]


@pytest.mark.parametrize("endpoint", ["chat", "complete"])
async def test_each_chunk_has_the_whole_text_and_the_last_one_is_final(
    api: Any, text: Tokenizer, endpoint: str
) -> None:
    engine = FakeEngine(script(text, "_", "_ two", "_ two", "on_ two", "one two"))
    async with api(engine) as client:
        chunks = chunks_of(await getattr(client, endpoint)(**OPTIONS, stream_options={"include_usage": True}))
    *sent, usage = chunks
    texts = texts_of(sent)[1:] if endpoint == "chat" else texts_of(sent)
    assert texts == [" two", "on two", "one two", "one two"], "what has not changed is not sent again"
    assert [chunk["choices"][0]["finish_reason"] for chunk in sent] == [None] * (len(sent) - 1) + ["stop"]
    assert all(chunk["diffusing"] is True for chunk in sent)
    assert "diffusing" not in usage
    assert usage["usage"]["completion_tokens"] == USAGE.completion_tokens
    assert engine.options[0].diffusing


async def test_special_tokens_what_follows_an_end_and_stop_strings_are_never_shown(api: Any, text: Tokenizer) -> None:
    one, two = text.encode("one", specials=False), text.encode(" two", specials=False)
    (end, *_), special = sorted(text.end_ids), sorted(text.special_ids - text.end_ids - {text.mask_id})[0]
    canvases = [[*one, special, *two], [*one, end, *two], [*one, *two, *one]]
    engine = FakeEngine(script(text, *canvases, final="one tw", cut=0))
    async with api(engine) as client:
        for options, wanted in (
            ({"stop": " two"}, ["one", "one tw"]),
            ({"stop": " two", "include_stop_str_in_output": True}, ["one two", "one", "one two", "one tw"]),
            ({"stop_token_ids": [two[-1]]}, None),
        ):
            texts = texts_of(chunks_of(await client.complete(**OPTIONS, **options)))
            if wanted is None:
                assert not [found for found in texts if found.startswith("one two")]
            else:
                assert texts == wanted
            assert not [found for found in texts if "<|" in found]


async def test_choices_are_told_apart_and_an_echo_is_in_each_chunk(api: Any, text: Tokenizer) -> None:
    engine = FakeEngine(script(text, "a_", "a b", final="a b"), script(text, "_ d", "c d", final="c d"))
    async with api(engine) as client:
        chunks = chunks_of(await client.complete(prompt="Hi", n=2, echo=True, **OPTIONS))
    assert texts_of(chunks, 0) == ["Hia", "Hia b", "Hia b"]
    assert texts_of(chunks, 1) == ["Hi d", "Hic d", "Hic d"]


async def test_what_is_taken_back_is_gone(api: Any, text: Tokenizer) -> None:
    engine = FakeEngine(script(text, "one two", "one _", [], final="one"))
    async with api(engine) as client:
        assert texts_of(chunks_of(await client.complete(**OPTIONS))) == ["one two", "one ", "", "one"]


async def test_reasoning_is_divided_in_what_is_not_final_too(api: Any, text: Tokenizer) -> None:
    engine = FakeEngine(script(text, "<think>Hm_", "<think>Hm.</think>Y_", final="<think>Hm.</think>Yes", cut=9))
    async with api(engine, reasoning_parser="think") as client:
        opening, *chunks = chunks_of(await client.chat(**OPTIONS))
    found = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert opening["diffusing"] is True
    assert found == [
        {"content": "", "reasoning_content": "Hm"},
        {"content": "Y", "reasoning_content": "Hm."},
        {"content": "Yes", "reasoning_content": "Hm."},
    ]


TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.mark.parametrize(
    ("endpoint", "param", "options"),
    [
        ("chat", "diffusing", {"diffusing": True}),
        ("complete", "diffusing", {"diffusing": True, "stream": False}),
        ("chat", "logprobs", {**OPTIONS, "logprobs": True}),
        ("complete", "logprobs", {**OPTIONS, "logprobs": 0}),
        ("chat", "tools", {**OPTIONS, "tools": TOOLS}),
        ("complete", "best_of", {**OPTIONS, "best_of": 2}),
        ("complete", "suffix", {**OPTIONS, "suffix": "a"}),
        ("complete", "diffusing", {**OPTIONS, "diffusing": "yes"}),
    ],
)
async def test_what_contradicts_it_is_refused_by_name(
    api: Any, tool_text: Tokenizer, endpoint: str, param: str, options: dict[str, Any]
) -> None:
    engine = FakeEngine()
    async with api(engine, tokenizer=tool_text) as client:
        assert error_of(await getattr(client, endpoint)(**options), 400)["param"] == param
    assert engine.prompts == []


async def test_without_it_nothing_changes(api: Any) -> None:
    engine = FakeEngine()
    async with api(engine) as client:
        for options in ({"diffusing": False}, {"diffusing": None, "stream": True}):
            response = await client.chat(**options)
            assert response.status_code == 200
            assert "diffusing" not in response.text
    assert not any(options.diffusing for options in engine.options)
