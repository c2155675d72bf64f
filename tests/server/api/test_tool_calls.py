"""Tools in chats: what the template shows, what the answer holds, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asynclane.server.engine.messages import Delta, Finish
from asynclane.server.text.tokenizer import Tokenizer

from ...support.fake_engine import USAGE, FakeEngine
from ...support.http import choices_of, chunks_of, error_of
from ...support.tools import NOW, TEMPLATE, WEATHER, write_checkpoint_with

USER = {"role": "user", "content": "Weather?"}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Pa\\"ris"}}\n</tool_call>'
ARGUMENTS = '{"city": "Pa\\"ris"}'
TOOLS = {"tools": [WEATHER, NOW]}
CALLED: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": ARGUMENTS}}],
}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "21"}
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def script(text: str, size: int, finish: Finish = Finish.STOP) -> list[Delta]:
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    return [*(Delta(piece) for piece in pieces), Delta("", finish, USAGE)]


@pytest.fixture
def chat(api: Any, tool_text: Tokenizer) -> Callable[..., Any]:
    """`await chat(engine, **fields)` with the model that knows tools; `settings` are the server's."""

    async def chat(engine: FakeEngine | None = None, settings: Any = None, **fields: Any) -> Any:
        async with api(engine or FakeEngine(), tokenizer=tool_text, **(settings or {})) as client:
            return await client.chat(**{"messages": [USER], **fields})

    return chat


def added_up(choices: list[dict[str, Any]]) -> tuple[str | None, list[tuple[str, str]], str]:
    """The content, the calls and the finish reason of a stream."""
    content, calls, finish = None, dict[int, list[str]](), ""
    for choice in choices:
        delta = choice["delta"]
        if delta.get("content") is not None:
            content = (content or "") + delta["content"]
        for call in delta.get("tool_calls", ()):
            if call["index"] not in calls:
                assert call["id"].startswith("call_")
                assert call["type"] == "function"
                calls[call["index"]] = [call["function"]["name"], ""]
            else:
                assert set(call) == {"index", "function"}
            calls[call["index"]][1] += call["function"]["arguments"]
        finish = choice["finish_reason"] or finish
    return content, [(name, arguments) for name, arguments in calls.values()], finish


SAID: list[tuple[str, dict[str, Any], tuple[str | None, list[tuple[str, str]], str]]] = [
    (CALL, {}, (None, [("get_weather", ARGUMENTS)], "tool_calls")),
    (f"I look.\n{CALL}\n{CALL}", {}, ("I look.", [("get_weather", ARGUMENTS)] * 2, "tool_calls")),
    (f"{CALL}\n{CALL}", {"parallel_tool_calls": False}, (None, [("get_weather", ARGUMENTS)], "tool_calls")),
    ("It rains.", {}, ("It rains.", [], "stop")),
    (CALL.replace("get_weather", "other"), {}, (CALL.replace("get_weather", "other"), [], "stop")),
    (CALL, {"tool_choice": "none"}, (CALL, [], "stop")),
    (CALL, {"tool_choice": NAMED}, (None, [("get_weather", ARGUMENTS)], "tool_calls")),
    (CALL[:62], {"tool_choice": "required"}, (None, [("get_weather", '{"city": "Pa')], "stop")),
]


@pytest.mark.parametrize(("said", "fields", "expected"), SAID, ids=range(len(SAID)))
@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_calls_are_the_same_streamed_and_whole_in_any_pieces(
    chat: Any, said: str, fields: dict[str, Any], expected: Any, size: int
) -> None:
    whole = choices_of(await chat(FakeEngine(script(said, size)), **TOOLS, **fields))[0]
    message = whole["message"]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    assert (message["content"], calls, whole["finish_reason"]) == expected
    assert message.keys() <= {"role", "content", "refusal", "tool_calls"}
    streamed = choices_of(await chat(FakeEngine(script(said, size)), stream=True, **TOOLS, **fields))
    assert added_up(streamed) == expected


async def test_an_answer_that_is_cut_off_says_so(chat: Any) -> None:
    for stream in (False, True):
        engine = FakeEngine(script(CALL, 9, Finish.LENGTH))
        choice = choices_of(await chat(engine, **TOOLS, stream=stream, tool_choice="required"))[-1]
        assert choice["finish_reason"] == "length"


async def test_each_choice_has_its_calls(chat: Any) -> None:
    engine = FakeEngine(script(CALL, 5), script("No.", 2))
    one, two = choices_of(await chat(engine, **TOOLS, n=2))
    assert (len(one["message"]["tool_calls"]), one["finish_reason"]) == (1, "tool_calls")
    assert (two["message"]["content"], two["finish_reason"]) == ("No.", "stop")
    engine = FakeEngine(script(CALL, 5), script("No.", 2))
    choices = choices_of(await chat(engine, **TOOLS, n=2, stream=True))
    assert [len(added_up([c for c in choices if c["index"] == at])[1]) for at in (0, 1)] == [1, 0]


async def test_the_template_shows_tools_calls_and_results(chat: Any, tool_text: Tokenizer) -> None:
    engine = FakeEngine()
    await chat(engine, messages=[USER, {**CALLED, "content": "I look."}, RESULT], **TOOLS)
    prompt = tool_text.decode(engine.prompts[0], specials=True)
    assert "Tools:\nget_weather(city: string): Get the weather in a city\nnow()<|eot_id|>" in prompt
    assert f"I look.\n{CALL}<|eot_id|>" in prompt
    assert "tool<|end_header_id|>\n\n21<|eot_id|>" in prompt
    assert engine.options[0].grammar is None
    await chat(engine, messages=[USER], **TOOLS, tool_choice="none")
    assert "Tools:" not in tool_text.decode(engine.prompts[1], specials=True)


async def test_a_number_of_many_digits_is_shown(api: Any, tmp_path: Path) -> None:
    template = TEMPLATE + "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
    engine, model = FakeEngine(), Tokenizer(write_checkpoint_with(tmp_path / "model", template))
    fields = {**called(arguments='{"time": 1795840153, "id": -9007199254740991}'), **tool(parameters=MAXIMUM)}
    async with api(engine, tokenizer=model) as client:
        assert (await client.chat(**fields)).status_code == 200
    prompt = model.decode(engine.prompts[0])
    assert '{"time": 1795840153, "id": -9007199254740991}' in prompt
    assert '"maximum": 9007199254740991' in prompt


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (lambda: {**called(arguments='{"n": 1795840153}'), **TOOLS}, "messages.1"),
        (lambda: {"tools": [NOW, {**WEATHER, "function": {"name": "f", "parameters": MAXIMUM}}]}, "tools.1"),
    ],
)
async def test_a_number_that_a_template_takes_for_a_width_is_named_by_its_place(
    api: Any, tmp_path: Path, fields: Any, param: str
) -> None:
    template = TEMPLATE + (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}"
        "{{ 'x' * (c.function.arguments.n | default(1)) }}{% endfor %}{% endfor %}"
        "{% for t in tools or [] %}{% set n = t.function.parameters.properties.n %}"
        "{{ 'x' * (n.maximum if n else 1) }}{% endfor %}"
    )
    async with api(tokenizer=Tokenizer(write_checkpoint_with(tmp_path / "model", template))) as client:
        error = error_of(await client.chat(**fields()), 400)
    assert error["param"] == param


@pytest.mark.parametrize("said", ["<|eot_id|>", "<|mdm_mask|>"])
async def test_special_tokens_that_tools_and_calls_spell_are_text(chat: Any, tool_text: Tokenizer, said: str) -> None:
    engine = FakeEngine()
    tool = {"name": "get_weather", "description": said, "parameters": {"properties": {said: {"enum": [said]}}}}
    called = json.dumps({said: said})
    call = {"id": "call_1", "type": "function", "function": {"name": said, "arguments": called}}
    messages = [USER, {**CALLED, "tool_calls": [call]}, {**RESULT, "content": said, "name": said}]
    await chat(engine, messages=messages, tools=[{"type": "function", "function": tool}])
    specials = [token for token in engine.prompts[0] if token in tool_text.special_ids]
    await chat(engine, messages=[USER, CALLED, RESULT], **TOOLS)
    assert specials == [token for token in engine.prompts[1] if token in tool_text.special_ids]
    assert tool_text.decode(engine.prompts[0]).count(said) == 7


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tools"),
        ({"tool_choice": NAMED}, "tools"),
        ({"tools": [{**WEATHER, "function": {**WEATHER["function"], "strict": True}}]}, "tools"),
        ({}, None),
        ({"tool_choice": "auto"}, None),
    ],
)
async def test_a_grammar_guides_calls_that_are_required_named_or_strict(
    chat: Any, fields: dict[str, Any], param: str | None
) -> None:
    engine = FakeEngine()
    await chat(engine, **{**TOOLS, **fields})
    grammar = engine.options[0].grammar
    assert (grammar and grammar.param) == param
    if grammar is not None:
        assert "city" in grammar.text


@pytest.mark.parametrize(
    ("choice", "held"), [("auto", ["city", "colour"]), ("required", ["city"]), ("none", ["colour"])]
)
async def test_an_answer_calls_or_has_the_format(chat: Any, choice: str, held: list[str]) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"properties": {"colour": {}}}}}
    said = '{"colour": "<tool_call>"}' if choice == "none" else CALL
    tools = [{**WEATHER, "function": {**WEATHER["function"], "strict": choice == "auto"}}]
    engine = FakeEngine(script(said, 5))
    answer = choices_of(await chat(engine, tools=tools, tool_choice=choice, response_format=form))[0]
    assert [name for name in ("city", "colour") if name in engine.options[0].grammar.text] == held
    assert answer["finish_reason"] == ("stop" if choice == "none" else "tool_calls")
    engine = FakeEngine(script('{"colour": "<tool_call>\\n{\\"name\\": 5}"}', 5))
    answer = choices_of(await chat(engine, tools=tools, tool_choice=choice, response_format=form))[0]
    assert json.loads(answer["message"]["content"]) == {"colour": '<tool_call>\n{"name": 5}'}


async def test_log_probabilities_are_those_of_all_tokens(chat: Any) -> None:
    engine = FakeEngine(script(CALL, 5))
    whole = choices_of(await chat(engine, **TOOLS, logprobs=True))[0]
    assert whole["logprobs"] == {"content": [], "refusal": None}
    chunks = choices_of(await chat(FakeEngine(script(CALL, 5)), **TOOLS, logprobs=True, stream=True))
    assert added_up(chunks)[1] == [("get_weather", ARGUMENTS)]


def tool(**function: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "f", **function}}]}


MAXIMUM = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 2**53 - 1}}}


def called(**function: Any) -> dict[str, Any]:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}", **function}}
    return {"messages": [USER, {**CALLED, "tool_calls": [call]}, RESULT]}


def nested(depth: int) -> dict[str, Any]:
    return {"a": nested(depth - 1)} if depth else {}


def schema(**keywords: Any) -> dict[str, Any]:
    return tool(parameters={"type": "object", "properties": {"a": keywords}})


BAD: list[tuple[str, dict[str, Any]]] = [
    ("tools", {"tools": {}}),
    ("tools", {"tools": [{**NOW, "function": {"name": f"f{at}"}} for at in range(129)]}),
    ("tools.0.type", {"tools": [{"type": "web_search"}]}),
    ("tools.0.function", {"tools": [{"type": "function"}]}),
    ("tools.0.function.name", tool(name="a b")),
    ("tools.1.function.name", {"tools": [NOW, NOW]}),
    ("tools.0.function.colour", tool(colour=1)),
    ("tools.0.function.strict", tool(strict="yes")),
    ("tools.0.function.parameters", tool(parameters=[])),
    ("tools.0.function.parameters", tool(parameters=nested(65))),
    ("tools.0.function.parameters.type", tool(parameters={"type": "array"})),
    ("tools.0.function.parameters", {**tool(parameters={"uniqueItems": True}), "tool_choice": "required"}),
    ("tools.0.function.parameters", tool(parameters={"uniqueItems": True}, strict=True)),
    ("tools", {**tool(), "guided_regex": "a"}),
    ("tools", {**tool(), "structured_outputs": {"choice": ["a"]}}),
    ("guided_json", {**tool(), "guided_json": {"uniqueItems": True}}),
    ("guided_json", {**tool(), "tool_choice": "required", "guided_json": {"uniqueItems": True}}),
    ("min_tokens", {**tool(), "tool_choice": "required", "min_tokens": 5}),
    ("ignore_eos", {**tool(strict=True), "ignore_eos": True}),
    ("tools.0.function.parameters", tool(parameters={"properties": 5})),
    ("messages.0.parsed", {"messages": [{**USER, "parsed": {}}]}),
    (
        "messages.1.tool_calls.0.index",
        {"messages": [USER, {**CALLED, "tool_calls": [{**CALLED["tool_calls"][0], "index": -1}]}, RESULT]},
    ),
    ("tools.0.function.name", tool(name="x" * 65)),
    ("tool_choice", {"tool_choice": "required"}),
    ("tool_choice", {"tools": [], "tool_choice": "required"}),
    ("tool_choice", {**TOOLS, "tool_choice": "any"}),
    ("tool_choice.type", {**TOOLS, "tool_choice": {"type": "allowed_tools"}}),
    ("tool_choice.function", {**TOOLS, "tool_choice": {"type": "function"}}),
    ("tool_choice.function.name", {**TOOLS, "tool_choice": {**NAMED, "function": {"name": "other"}}}),
    ("tool_choice.function.name", {"tool_choice": NAMED}),
    ("parallel_tool_calls", {**TOOLS, "parallel_tool_calls": 1}),
    ("messages.1.tool_call_id", {"messages": [USER, RESULT]}),
    ("messages.2.tool_call_id", {"messages": [USER, CALLED, {**RESULT, "tool_call_id": "call_2"}]}),
    ("messages.2.tool_call_id", {"messages": [USER, CALLED, {**RESULT, "tool_call_id": "x" * 257}]}),
    ("messages.1.tool_call_id", {"messages": [USER, {"role": "tool", "content": "21"}]}),
    ("messages.0.tool_call_id", {"messages": [{**USER, "tool_call_id": "call_1"}]}),
    ("messages.0.tool_calls", {"messages": [{**CALLED, "role": "user"}]}),
    ("messages.1.tool_calls", {"messages": [USER, CALLED]}),
    ("messages.1.tool_calls.0.id", {"messages": [USER, {**CALLED, "tool_calls": [{"type": "function"}]}]}),
    ("messages.1.tool_calls.0.function.arguments", called(arguments="{")),
    ("messages.1.tool_calls.0.function.arguments", called(arguments="[]")),
    ("messages.1.tool_calls.0.function.arguments", called(arguments='{"a": NaN}')),
    ("messages.1.tool_calls.0.function.arguments", called(arguments='{"a": "\\ud800"}')),
    ("messages.1.tool_calls.0.function.arguments", called(arguments='{"a": ' * 70 + "1" + "}" * 70)),
    ("messages.1.tool_calls.0.function.arguments", called(arguments='{"a": ' * 100_000)),
    ("messages.1.content", {"messages": [USER, {"role": "assistant", "content": None}, USER]}),
    ("messages.1.content", {"messages": [USER, {"role": "assistant"}, USER]}),
    ("messages.0.reasoning_content", {"messages": [{**USER, "reasoning_content": "Hm."}]}),
    ("reasoning_effort", {"reasoning_effort": "extreme"}),
    ("chat_template_kwargs", {"chat_template_kwargs": [1]}),
    ("chat_template_kwargs", {"chat_template_kwargs": {str(at): 1 for at in range(65)}}),
    ("chat_template_kwargs", {"chat_template_kwargs": nested(65)}),
    ("chat_template_kwargs.colour", {"chat_template_kwargs": {"colour": 1}}),
    ("chat_template_kwargs.messages", {"chat_template_kwargs": {"messages": []}}),
    ("chat_template_kwargs.bos_token", {"chat_template_kwargs": {"bos_token": "x"}}),
]


@pytest.mark.parametrize(("param", "fields"), BAD, ids=lambda value: value if isinstance(value, str) else "")
async def test_what_is_wrong_with_tools_is_named(chat: Any, param: str, fields: dict[str, Any]) -> None:
    engine = FakeEngine()
    error = error_of(await chat(engine, **fields), 400)
    assert error["param"] == param
    assert param in error["message"]
    assert engine.prompts == []


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (tool(parameters={"properties": []}), "/properties must be an object, not []"),
        (tool(parameters={"properties": {"a/b": 1}}), "/properties/a~1b must be a schema, not 1"),
        (tool(parameters={"required": 5}), "/required must be a list, not 5"),
        (schema(enum=5), "/properties/a/enum must be a list, not 5"),
        (schema(items={"properties": {"b": {"required": True}}}), "/properties/a/items/properties/b/required must be"),
        (schema(anyOf=[{}, {"properties": None}]), "/properties/a/anyOf/1/properties must be an object, not null"),
    ],
)
async def test_what_a_template_cannot_read_of_a_schema_is_named_by_its_place(
    chat: Any, fields: dict[str, Any], problem: str
) -> None:
    error = error_of(await chat(**fields), 400)
    assert error["param"] == "tools.0.function.parameters"
    assert error["message"].startswith(f"tools.0.function.parameters: {problem}")


async def test_names_of_properties_may_be_keywords(chat: Any) -> None:
    properties = {name: {"type": "string"} for name in ("properties", "required", "enum")}
    fields = tool(parameters={"properties": {**properties, "any": True, "none": {"enum": []}}})
    assert (await chat(FakeEngine(), **fields)).status_code == 200


async def test_an_error_speaks_of_no_class(chat: Any) -> None:
    for field, value in (("tools", [1]), ("messages", [1]), ("tool_calls", [1])):
        given = {"messages": [USER, {**CALLED, field: value}, RESULT]} if field == "tool_calls" else {field: value}
        message = error_of(await chat(**given), 400)["message"]
        assert message.endswith(f"{field}.0: must be an object, not 1")


async def test_what_sdks_read_of_an_answer_can_be_sent_back(chat: Any) -> None:
    call = CALLED["tool_calls"][0]
    read = {**call, "index": 0, "function": {**call["function"], "parsed_arguments": {"city": "Pa"}}}
    one, two = FakeEngine(), FakeEngine()
    await chat(one, messages=[USER, CALLED, RESULT], **TOOLS)
    await chat(two, messages=[USER, {**CALLED, "tool_calls": [read], "parsed": {"a": 1}}, RESULT], **TOOLS)
    assert one.prompts == two.prompts != []


@pytest.mark.parametrize("said", [CALL, f"a{CALL}b", "Yes.", "", "\n"])
@pytest.mark.parametrize("stream", [False, True])
async def test_each_answer_can_be_sent_back(chat: Any, said: str, stream: bool) -> None:
    choices = choices_of(await chat(FakeEngine(script(said, 5)), **TOOLS, stream=stream))
    if stream:
        content, calls, _ = added_up(choices)
        named = [
            {"id": f"c{at}", "type": "function", "function": {"name": n, "arguments": a}}
            for at, (n, a) in enumerate(calls)
        ]
        answer = {"role": "assistant", "content": content} | ({"tool_calls": named} if named else {})
    else:
        answer = choices[0]["message"]
    assert (answer["content"] is None) == (said == CALL)
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "1"} for call in answer.get("tool_calls", ())]
    assert (await chat(FakeEngine(), messages=[USER, answer, *results, USER], **TOOLS)).status_code == 200


@pytest.mark.parametrize(
    ("template", "settings", "reason"),
    [
        (None, {}, "shows no tools"),
        (None, {"tool_parser": "hermes"}, "shows no tools"),
        (TEMPLATE, {"tool_parser": "none"}, "--tool-parser none"),
        (TEMPLATE, {"tool_parser": "json"}, "writes calls as hermes, but --tool-parser is json"),
        (TEMPLATE.replace("tool_call>", "call>"), {}, "name it with --tool-parser (gemma, hermes, json)"),
    ],
)
async def test_tools_are_refused_where_template_and_parser_do_not_allow_them(
    api: Any, text: Tokenizer, tmp_path: Path, template: str | None, settings: Any, reason: str
) -> None:
    model = text if template is None else Tokenizer(write_checkpoint_with(tmp_path / "model", template))
    async with api(tokenizer=model, **settings) as client:
        error = error_of(await client.chat(**TOOLS), 400)
        assert (error["param"], error["code"]) == ("tools", "unsupported_parameter")
        assert reason in error["message"]
        assert (await client.chat(**TOOLS, tool_choice="none")).status_code == 200
        history = await client.chat(messages=[USER, CALLED, RESULT])
        assert history.status_code == (400 if template is None else 200)
        if template is None:
            assert error_of(history)["param"] == "messages.1"


async def test_a_parser_that_is_named_reads_where_the_template_is_silent(api: Any, tmp_path: Path) -> None:
    silent = Tokenizer(write_checkpoint_with(tmp_path / "model", TEMPLATE.replace("tool_call>", "call>")))
    said = '{"name": "now", "parameters": {}}'
    async with api(FakeEngine(script(said, 3)), tokenizer=silent, tool_parser="json") as client:
        (choice,) = choices_of(await client.chat(**TOOLS))
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "now", "arguments": "{}"}


async def test_continuous_usage_comes_with_each_part(chat: Any) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = chunks_of(await chat(FakeEngine(script(CALL, 5)), **TOOLS, stream=True, stream_options=options))
    assert all("completion_tokens" in chunk["usage"] for chunk in chunks)
