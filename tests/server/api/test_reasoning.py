"""Reasoning is sent apart from the answer, and variables go to the chat template."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asynclane.server.engine.messages import Delta, Finish, Usage
from asynclane.server.structured.grammar import Grammars
from asynclane.server.text.detokenizer import AnswerText
from asynclane.server.text.tokenizer import Tokenizer

from ...support.fake_engine import FakeEngine
from ...support.http import choices_of, chunks_of
from ...support.tools import TEMPLATE, WEATHER, add_tokens, write_checkpoint_with

USER = {"role": "user", "content": "Hi"}
# Beside what it shows of tools: earlier reasoning, an effort, and reasoning that is switched off or opened.
THINKING = (
    TEMPLATE.replace("(message.content or '')", "((message.reasoning_content or '') + (message.content or ''))")
    + "{%- if reasoning_effort %}effort {{ reasoning_effort }}{% endif -%}"
    + "{%- if enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif -%}"
    + "{%- if enable_thinking is true %}{{ '<think>\n' }}{% endif -%}"
)
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(write_checkpoint_with(tmp_path_factory.mktemp("thinking") / "model", THINKING))


@pytest.fixture
def chat(api: Any, thinking: Tokenizer) -> Callable[..., Any]:
    async def chat(engine: FakeEngine | None = None, settings: Any = None, **fields: Any) -> Any:
        async with api(engine or FakeEngine(), tokenizer=thinking, **(settings or {})) as client:
            return await client.chat(**{"messages": [USER], **fields})

    return chat


def script(text: Tokenizer, said: str, size: int = 3, finish: Finish = Finish.STOP) -> list[Delta]:
    """The deltas of a text, so many tokens in each."""
    ids = text.encode(said, specials=False)
    pieces = [ids[at : at + size] for at in range(0, len(ids), size)]
    deltas = [
        Delta(text.decode(piece), None, Usage(min(len(ids), (at + 1) * size)), token_ids=tuple(piece))
        for at, piece in enumerate(pieces)
    ]
    return [*deltas, Delta("", finish, Usage(len(ids)))]


def size_of(text: Tokenizer, said: str) -> int:
    return len(text.encode(said, specials=False))


THOUGHT, SAID = "<think>\nIt is 12 + 5.\n</think>", "\n\n17"


@pytest.mark.parametrize("size", [1, 4, 100])
async def test_reasoning_is_parted_and_counted_streamed_and_whole(chat: Any, thinking: Tokenizer, size: int) -> None:
    deltas = script(thinking, THOUGHT + SAID, size)
    body = (await chat(FakeEngine(deltas))).json()
    assert body["choices"][0]["message"] == {
        "role": "assistant",
        "content": "17",
        "refusal": None,
        "reasoning_content": "It is 12 + 5.",
    }
    details = body["usage"]["completion_tokens_details"]
    assert details["reasoning_tokens"] == size_of(thinking, THOUGHT)
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last = chunks_of(await chat(FakeEngine(deltas), stream=True, stream_options=options))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "It is 12 + 5."
    assert "".join(delta.get("content") or "" for delta in deltas) == "17"
    assert last["usage"] == body["usage"]
    counts = [chunk["usage"]["completion_tokens_details"]["reasoning_tokens"] for chunk in chunks]
    assert counts == sorted(counts)


async def test_reasoning_that_is_cut_off_is_no_answer(chat: Any, thinking: Tokenizer) -> None:
    engine = FakeEngine(script(thinking, "<think>\nIt is", finish=Finish.LENGTH))
    body = (await chat(engine)).json()
    message = body["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("", "It is")
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] == size_of(thinking, "<think>\nIt is")


@pytest.mark.parametrize("special", [True, False])
async def test_marks_that_are_tokens_are_read_and_written_as_tokens(api: Any, tmp_path: Path, special: bool) -> None:
    directory = write_checkpoint_with(tmp_path / "model", THINKING)
    add_tokens(directory, ["<think>", "</think>", "<tool_call>"], special=special)
    text = Tokenizer(directory)
    marks = text.tokens_of(["<think>", "</think>", "<tool_call>", "</tool_call>"])
    assert len(marks) == 3
    strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
    said = text.encode(f"{THOUGHT}\n{CALL}", specials=False)
    assert set(said) >= set(marks.values())
    engine = FakeEngine([Delta("x", Finish.STOP, Usage(1))])
    async with api(engine, tokenizer=text) as client:
        for fields in {}, {"tools": [strict]}, {"tools": [WEATHER], "tool_choice": "required"}:
            assert (await client.chat(**fields)).status_code == 200
    shown = [set(options.shown) for options in engine.options]
    thought = {marks["<think>"], marks["</think>"]} if special else set()
    call = {marks["<tool_call>"]} if special else set()
    assert shown == [thought, thought | call, call]
    # The same text, whatever the marks are.
    for stops in ((), ("no such text",)):
        read = AnswerText(text, stops, shown=engine.options[1].shown)
        assert "".join(read.feed([token])[0] for token in said) + read.flush() == f"{THOUGHT}\n{CALL}"
    free, held = (options.grammar for options in engine.options[1:])
    assert free is not None
    assert held is not None
    grammars = Grammars(text)
    for grammar, answer in (free, said), (held, said[said.index(marks["<tool_call>"]) :]):
        await grammars.ready(grammar)
        made = grammars.constraint(grammar)
        assert all(made.accept(token, 300) for token in answer)
        assert made.complete
    grammars.close()


async def test_calls_follow_reasoning(chat: Any, thinking: Tokenizer) -> None:
    (choice,) = choices_of(await chat(FakeEngine(script(thinking, f"{THOUGHT}\n{CALL}")), tools=[WEATHER]))
    message = choice["message"]
    assert (message["content"], message["reasoning_content"]) == (None, "It is 12 + 5.")
    assert message["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": '{"city": "Paris"}'}


@pytest.mark.parametrize(
    ("said", "fields", "reasoning", "content"),
    [
        ("Hm.\n</think>\n5", {"chat_template_kwargs": {"enable_thinking": True}}, "Hm.", "5"),
        ("5", {"chat_template_kwargs": {"enable_thinking": False}}, None, "5"),
        ("m.</think>5", {"messages": [USER, {"role": "assistant", "content": "<think>H"}]}, "m.", "5"),
        ("<think>", {"messages": [USER, {"role": "assistant", "content": "Yes, "}]}, None, "<think>"),
        (THOUGHT, {"guided_regex": "(?s:.*)"}, None, THOUGHT),
        (THOUGHT, {"settings": {"reasoning_parser": "none"}}, None, THOUGHT),
    ],
    ids=range(6),
)
async def test_what_is_reasoning_depends_on_the_prompt_the_format_and_the_parser(
    chat: Any, thinking: Tokenizer, said: str, fields: Any, reasoning: str | None, content: str
) -> None:
    message = choices_of(await chat(FakeEngine(script(thinking, said)), **fields))[0]["message"]
    assert (message.get("reasoning_content"), message["content"]) == (reasoning, content)


async def test_required_calls_are_not_parted(chat: Any, thinking: Tokenizer) -> None:
    engine = FakeEngine(script(thinking, CALL))
    message = choices_of(await chat(engine, tools=[WEATHER], tool_choice="required"))[0]["message"]
    assert "reasoning_content" not in message
    assert len(message["tool_calls"]) == 1


async def test_a_parser_that_is_named_needs_no_sign_in_the_template(api: Any, text: Tokenizer) -> None:
    for settings, content in ({}, THOUGHT), ({"reasoning_parser": "think"}, ""):
        async with api(FakeEngine(script(text, THOUGHT)), **settings) as client:
            message = choices_of(await client.chat())[0]["message"]
        assert message["content"] == content


async def test_variables_go_to_a_template_that_has_them(chat: Any, api: Any, thinking: Tokenizer) -> None:
    engine = FakeEngine()
    await chat(engine, chat_template_kwargs={"enable_thinking": False}, reasoning_effort="low")
    assert thinking.decode(engine.prompts[0]).endswith("effort low<think>\n\n</think>\n\n")
    same = {"chat_template_kwargs": {"reasoning_effort": "low"}}
    assert (await chat(**same, reasoning_effort="low")).status_code == 200
    other = await chat(**same, reasoning_effort="high")
    assert (other.status_code, other.json()["error"]["param"]) == (400, "reasoning_effort")
    unknown = await chat(chat_template_kwargs={"thinking": True})
    assert unknown.json()["error"]["param"] == "chat_template_kwargs.thinking"
    assert "enable_thinking, reasoning_effort" in unknown.json()["error"]["message"]
    async with api() as client:  # a template without the variable
        assert (await client.chat(reasoning_effort="low")).status_code == 200


async def test_a_variable_that_breaks_the_template_is_named(api: Any, tmp_path: Path) -> None:
    fragile = Tokenizer(write_checkpoint_with(tmp_path / "model", TEMPLATE + "{{ 1 / (scale or 1) }}"))
    async with api(tokenizer=fragile) as client:
        assert (await client.chat()).status_code == 200
        refused = await client.chat(chat_template_kwargs={"scale": "x"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "chat_template_kwargs")


async def test_earlier_reasoning_goes_to_the_template(chat: Any, thinking: Tokenizer) -> None:
    engine = FakeEngine()
    spelt = {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm. <|eot_id|>"}
    await chat(engine, messages=[USER, spelt, USER])
    assert "Hm. <|eot_id|>Yes." in thinking.decode(engine.prompts[0])
