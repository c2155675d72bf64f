"""`/v1/responses` around a scripted engine: its items and events, what the template gets, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import openai.types.responses as sdk
import pytest
from pydantic import TypeAdapter

from asynclane.server.engine.messages import Delta, Finish
from asynclane.server.errors import EngineFailure, InvalidValue, Overloaded, TimedOut
from asynclane.server.schema.response_input import ResponsesRequest
from asynclane.server.schema.unsupported import RESPONSES, unsupported_by
from asynclane.server.text.logprobs import Token, TokenLogprob
from asynclane.server.text.tokenizer import Tokenizer

from ...support.fake_engine import USAGE, FakeEngine
from ...support.http import error_of
from ...support.tools import CITY

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
WEATHER = {"type": "function", "name": "get_weather", "description": "Get the weather in a city", "parameters": CITY}
NOW = {"type": "function", "name": "now"}
TOOLS = {"tools": [WEATHER, NOW]}
ARGUMENTS = '{"city": "Pa\\"ris"}'
MARKED = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Pa\\"ris"}}\n</tool_call>'
USER = {"role": "user", "content": "Weather?"}
CALLED = {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": ARGUMENTS}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "21"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
SAID = {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant"}
SAID |= {"content": [{"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}]}
EVENT: TypeAdapter[Any] = TypeAdapter(sdk.ResponseStreamEvent)


def script(text: str, size: int, finish: Finish = Finish.STOP) -> list[Delta]:
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    return [*(Delta(piece) for piece in pieces), Delta("", finish, USAGE)]


@pytest.fixture
def respond(api: Any, tool_text: Tokenizer) -> Callable[..., Any]:
    """`await respond(engine, **fields)` with the model that knows tools; `settings` are the server's."""

    async def respond(engine: FakeEngine | None = None, settings: Any = None, **fields: Any) -> Any:
        body = {"model": "tiny-llada", "input": [USER], **fields}
        async with api(engine or FakeEngine(), tokenizer=tool_text, **(settings or {})) as client:
            return await client.raw("/v1/responses", json.dumps(body))

    return respond


def events_of(response: Any) -> list[dict[str, Any]]:
    """The events of a stream, each of which is one of OpenAI's under the name that it has."""
    assert response.status_code == 200, response.text
    *blocks, rest = response.text.split("\n\n")
    assert rest == ""
    events = []
    for number, block in enumerate(blocks):
        name, data = block.split("\n")
        found = json.loads(data.removeprefix("data: "))
        EVENT.validate_python(found)
        assert (name, found["sequence_number"]) == (f"event: {found['type']}", number)
        events.append(found)
    return events


def gist(output: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """The type, text or arguments, and status of each item."""
    return [
        (item["type"], item["arguments"] if "arguments" in item else item["content"][0]["text"], item["status"])
        for item in output
    ]


CALL = ("function_call", ARGUMENTS, "completed")
ANSWERS: list[tuple[str, Finish, dict[str, Any], list[tuple[str, str, str]]]] = [
    ("It rains.", Finish.STOP, {}, [("message", "It rains.", "completed")]),
    ("It rains.", Finish.LENGTH, {}, [("message", "It rains.", "incomplete")]),
    ("", Finish.STOP, {}, [("message", "", "completed")]),
    (MARKED, Finish.STOP, TOOLS, [CALL]),
    (f"I look.\n{MARKED}\n{MARKED}", Finish.STOP, TOOLS, [("message", "I look.", "completed"), CALL, CALL]),
    (f"{MARKED}\nThat is all.", Finish.STOP, TOOLS, [CALL, ("message", "That is all.", "completed")]),
    (f"{MARKED}\n{MARKED}", Finish.STOP, {**TOOLS, "parallel_tool_calls": False}, [CALL]),
    (
        MARKED[:62],
        Finish.STOP,
        {**TOOLS, "tool_choice": "required"},
        [("function_call", '{"city": "Pa', "incomplete")],
    ),
    ("<think>Hm.</think>Yes.", Finish.STOP, {}, [("reasoning", "Hm.", "completed"), ("message", "Yes.", "completed")]),
    ("<think>Hm.", Finish.LENGTH, {}, [("reasoning", "Hm.", "incomplete")]),
    (
        f"<think>Hm.</think>{MARKED}",
        Finish.STOP,
        TOOLS,
        [("reasoning", "Hm.", "completed"), CALL],
    ),
]


@pytest.mark.parametrize(("said", "finish", "fields", "expected"), ANSWERS, ids=range(len(ANSWERS)))
@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_items_are_the_same_streamed_and_whole_in_any_pieces(
    respond: Any, said: str, finish: Finish, fields: Any, expected: Any, size: int
) -> None:
    settings = {"reasoning_parser": "think"}
    whole = (await respond(FakeEngine(script(said, size, finish)), settings, **fields)).json()
    sdk.Response.model_validate(whole)
    status = "incomplete" if finish is Finish.LENGTH else "completed"
    assert (gist(whole["output"]), whole["status"]) == (expected, status)
    assert (whole["completed_at"] is None) == (status == "incomplete")
    events = events_of(await respond(FakeEngine(script(said, size, finish)), settings, stream=True, **fields))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1]["type"] == f"response.{status}"
    ended = events[-1]["response"]
    assert (gist(ended["output"]), ended["usage"]) == (expected, whole["usage"])
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == ended["output"]
    deltas = [""] * len(expected)
    for event in events:
        if "delta" in event:
            deltas[event["output_index"]] += event["delta"]
            assert event["item_id"] == ended["output"][event["output_index"]]["id"]
    assert deltas == [text for _, text, _ in expected]


async def test_usage_has_the_names_of_responses(respond: Any) -> None:
    usage = (await respond()).json()["usage"]
    assert usage["input_tokens_details"] == {"cached_tokens": 16, "cache_write_tokens": 0}
    assert (usage["output_tokens"], usage["output_tokens_details"]["forwards"]) == (3, 2)
    assert usage["total_tokens"] == usage["input_tokens"] + 3


def scored(text: str) -> list[Delta]:
    """One token for each character."""
    return [
        Delta(letter, scores=(TokenLogprob(Token(letter, letter.encode(), 7), -0.5, 0, at, ()),))
        for at, letter in enumerate(text)
    ] + [Delta("", Finish.STOP, USAGE)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("said", ["It rains.", f"I look. {MARKED} So: <tool_call> no."])
async def test_log_probabilities_are_those_of_the_messages_text(respond: Any, said: str, stream: bool) -> None:
    response = await respond(
        FakeEngine(scored(said)), {}, stream=stream, include=["message.output_text.logprobs"], **TOOLS
    )
    output = events_of(response)[-1]["response"]["output"] if stream else response.json()["output"]
    parts = [item["content"][0] for item in output if item["type"] == "message"]
    assert parts
    for part in parts:
        assert "".join(token["token"] for token in part["logprobs"]) == part["text"]
    if stream:
        deltas = [event for event in events_of(response) if event["type"] == "response.output_text.delta"]
        assert all("".join(one["token"] for one in event["logprobs"]) == event["delta"] for event in deltas)


FAILED: list[tuple[Exception, str, str | None]] = [
    (EngineFailure("it broke"), "server_error", None),
    (Overloaded("too many"), "rate_limit_exceeded", None),
    (InvalidValue("text", "text: too complex"), "invalid_prompt", "text"),
    (TimedOut("it is late"), "server_error", "timeout"),
]


@pytest.mark.parametrize(("error", "code", "param"), FAILED, ids=lambda value: str(value)[:20])
async def test_a_stream_that_breaks_ends_as_failed(respond: Any, error: Exception, code: str, param: str) -> None:
    events = events_of(await respond(FakeEngine([Delta("Hel"), error]), stream=True))
    assert events[-1]["type"] == "response.failed"
    response = events[-1]["response"]
    assert (response["status"], response["error"]["code"], response["error"]["param"]) == ("failed", code, param)
    assert gist(response["output"]) == [("message", "Hel", "incomplete")]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_before_the_first_event_is_a_response_of_its_own(respond: Any, stream: bool) -> None:
    error = error_of(await respond(FakeEngine(Overloaded("full")), stream=stream), 429)
    assert error["code"] == "overloaded"


async def test_the_template_shows_instructions_calls_outputs_and_tools(respond: Any, tool_text: Tokenizer) -> None:
    engine = FakeEngine()
    items = [USER, THOUGHT, SAID, CALLED, OUTPUT]
    assert (await respond(engine, instructions="Be kind.", input=items, **TOOLS)).status_code == 200
    prompt = tool_text.decode(engine.prompts[0], specials=True)
    assert "Be kind." in prompt
    assert "Tools:\nget_weather(city: string): Get the weather in a city\nnow()<|eot_id|>" in prompt
    assert f"I look.\n{MARKED}<|eot_id|>" in prompt
    assert "tool<|end_header_id|>\n\n21<|eot_id|>" in prompt


LOOK = {"role": "assistant", "content": "I look."}


def chat_call(call_id: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "get_weather", "arguments": {"city": 'Pa"ris'}}}


RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "21"}
ASKED = {"role": "user", "content": "Weather?"}
MERGED: list[tuple[list[Any], list[dict[str, Any]]]] = [
    ([USER, SAID, SAID], [ASKED, LOOK, LOOK]),
    (
        [USER, THOUGHT, SAID, CALLED, OUTPUT],
        [ASKED, {**LOOK, "reasoning_content": "Hm.", "tool_calls": [chat_call("call_1")]}, RESULT],
    ),
    (
        [USER, CALLED, SAID, {**CALLED, "call_id": "call_2"}, OUTPUT],
        [ASKED, {**LOOK, "tool_calls": [chat_call("call_1"), chat_call("call_2")]}, RESULT],
    ),
    (
        [USER, {**THOUGHT, "summary": None, "content": [{"type": "output_text", "text": "Hm."}]}, SAID, USER],
        [ASKED, {**LOOK, "reasoning_content": "Hm."}, ASKED],
    ),
    ([USER, SAID, THOUGHT, USER], [ASKED, LOOK, {**LOOK, "content": "", "reasoning_content": "Hm."}, ASKED]),
    ([{**USER, "content": [{"type": "input_text", "text": "Weath"}, {"type": "input_text", "text": "er?"}]}], [ASKED]),
    (
        [USER, CALLED, {**OUTPUT, "output": [{"type": "input_text", "text": "21"}], "name": "get_weather"}],
        [ASKED, {**LOOK, "content": "", "tool_calls": [chat_call("call_1")]}, {**RESULT, "name": "get_weather"}],
    ),
]


@pytest.mark.parametrize(("items", "messages"), MERGED, ids=range(len(MERGED)))
def test_the_items_of_one_answer_are_one_message(items: list[Any], messages: list[dict[str, Any]]) -> None:
    chat = ResponsesRequest.model_validate({"model": "m", "input": items}).chat()
    assert [message.for_template() for message in chat.messages] == messages


async def test_every_option_reaches_the_engine(respond: Any) -> None:
    engine = FakeEngine()
    fields: dict[str, Any] = {"temperature": 0.5, "top_p": 0.9, "max_output_tokens": 9, "seed": 4, "stop": ["x"]}
    fields |= {"decoder": "asynclane", "threshold": 0.5, "top_k": 3, "include": ["message.output_text.logprobs"]}
    fields |= {"top_logprobs": 2, "reasoning": {"effort": "high", "summary": "auto"}, "user": "Mia", "metadata": {}}
    found = (await respond(engine, **fields)).json()
    options = engine.options[0]
    assert (options.temperature, options.top_p, options.max_tokens, options.seed) == (0.5, 0.9, 9, 4)
    assert (options.stop, options.top_k, options.ranks, options.decoder) == (("x",), 3, 2, "asynclane")
    assert options.params == (("threshold", 0.5),)
    assert (found["temperature"], found["top_p"], found["top_logprobs"]) == (0.5, 0.9, 2)
    assert found["reasoning"] == {"effort": "high", "summary": None}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}}, "text.format"),
        ({"text": {"format": {"type": "json_object"}, "verbosity": "low"}}, "text.format"),
        ({"structured_outputs": {"choice": ["a", "b"]}}, "structured_outputs"),
        ({**TOOLS, "tool_choice": {"type": "function", "name": "now"}}, "tools"),
        ({"tools": [{**WEATHER, "strict": True}]}, "tools"),
        ({"text": {"format": {"type": "text"}}}, None),
        ({**TOOLS, "tool_choice": "none", "text": {"format": {"type": "json_object"}}}, "text.format"),
    ],
)
async def test_a_grammar_guides_formats_and_calls(respond: Any, fields: dict[str, Any], param: str | None) -> None:
    engine = FakeEngine()
    response = await respond(engine, **fields)
    assert response.status_code == 200, response.text
    grammar = engine.options[0].grammar
    assert (grammar and grammar.param) == param


def formatted(**fields: Any) -> dict[str, Any]:
    return {"text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA, **fields}}}


BAD: list[tuple[str, dict[str, Any]]] = [
    ("input", {"input": 5}),
    ("input", {"input": []}),
    ("input.0", {"input": ["a"]}),
    ("input.0.type", {"input": [{"type": "item_reference", "id": "msg_1"}]}),
    ("input.0.type", {"input": [{"type": ["message"]}]}),
    ("input.0.role", {"input": [{"role": "tool", "content": "a"}]}),
    ("input.0.content", {"input": [{"role": "user", "content": None}]}),
    ("input.0.content.0.type", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}),
    ("input.0.colour", {"input": [{**USER, "colour": 1}]}),
    ("input.0.phase", {"input": [{**USER, "phase": "commentary"}]}),
    ("input.1.call_id", {"input": [USER, OUTPUT]}),
    ("input.2.call_id", {"input": [USER, CALLED, {**OUTPUT, "call_id": "call_2"}]}),
    ("input.2", {"input": [USER, SAID, CALLED]}),
    ("input.1", {"input": [USER, THOUGHT]}),
    ("input.1.arguments", {"input": [USER, {**CALLED, "arguments": "["}, OUTPUT]}),
    ("input.1.encrypted_content", {"input": [USER, {**THOUGHT, "encrypted_content": "x"}, USER]}),
    ("input", {"input": "a" * 100_000}),
    ("instructions", {"instructions": 5}),
    ("max_output_tokens", {"max_output_tokens": 0}),
    ("max_output_tokens", {"max_output_tokens": 1000}),
    ("tools", {"tools": [{**NOW, "name": f"f{at}"} for at in range(129)]}),
    ("tools.0.type", {"tools": [{"type": "web_search_preview"}]}),
    ("tools.0.type", {"tools": [{"type": "mcp", "server_label": "x", "server_url": "y"}]}),
    ("tools.0.name", {"tools": [{"type": "function"}]}),
    ("tools.0.function", {"tools": [{"type": "function", "name": "f", "function": {"name": "f"}}]}),
    ("tools.1.name", {"tools": [NOW, NOW]}),
    ("tools.0.parameters.type", {"tools": [{**NOW, "parameters": {"type": "array"}}]}),
    ("tools.0.parameters", {"tools": [{**NOW, "parameters": {"uniqueItems": True}, "strict": True}]}),
    ("tools.0.defer_loading", {"tools": [{**NOW, "defer_loading": True}]}),
    ("tools", {**TOOLS, "guided_regex": "a"}),
    ("text.format.schema", {**TOOLS, "text": {"format": {"type": "json_schema", "name": "a", "schema": {"not": {}}}}}),
    ("tool_choice", {"tool_choice": "required"}),
    ("tool_choice", {**TOOLS, "tool_choice": "any"}),
    ("tool_choice.type", {**TOOLS, "tool_choice": {"type": "file_search"}}),
    ("tool_choice.name", {**TOOLS, "tool_choice": {"type": "function", "name": "other"}}),
    ("text.format.type", {"text": {"format": {"type": "xml"}}}),
    ("text.format.schema", {"text": {"format": {"type": "json_schema", "name": "a"}}}),
    ("text.format.name", {"text": {"format": {"type": "text", "name": "a"}}}),
    ("text.format.schema", formatted(schema={"uniqueItems": True})),
    ("guided_regex", {**formatted(), "guided_regex": "a"}),
    ("min_tokens", {**formatted(), "min_tokens": 2}),
    ("include.0", {"include": ["web_search_call.results"]}),
    ("top_logprobs", {"top_logprobs": 2}),
    ("top_logprobs", {"top_logprobs": 21, "include": ["message.output_text.logprobs"]}),
    ("reasoning.effort", {"reasoning": {"effort": "extreme"}}),
    ("reasoning.summary", {"reasoning": {"summary": "detailed"}}),
    ("chat_template_kwargs.colour", {"chat_template_kwargs": {"colour": 1}}),
    ("temperature", {"temperature": 3}),
    ("stream_options", {"stream": True, "stream_options": {"include_usage": True}}),
    ("stream_options", {"stream": True, "stream_options": {"include_obfuscation": True}}),
    ("outputs", {"outputs": 1}),
    ("timeout", {"timeout": 86_000}),
]


@pytest.mark.parametrize(("param", "fields"), BAD, ids=lambda value: value if isinstance(value, str) else "")
@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_wrong_is_named_as_responses_name_it(
    respond: Any, param: str, fields: dict[str, Any], stream: bool
) -> None:
    engine = FakeEngine()
    error = error_of(await respond(engine, **{"stream": stream, **fields}), 400)
    assert error["param"] == param or error["param"].startswith(f"{param}./")
    assert param in error["message"] or error["code"] == "context_length_exceeded"
    assert engine.prompts == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("key", ["max_tokens", "messages", "response_format"])
async def test_a_refused_schema_is_named_as_it_was_sent(respond: Any, key: str, stream: bool) -> None:
    """By the compiler of its schema, whose keys stay as they are."""
    schema = {"type": "object", "properties": {key: {"uniqueItems": True}}}
    error = error_of(await respond(FakeEngine(), **formatted(schema=schema), stream=stream), 400)
    assert error["param"] == "text.format.schema"
    assert f"text.format.schema: /properties/{key}/uniqueItems is not supported" in error["message"]


@pytest.mark.parametrize("name", unsupported_by(RESPONSES))
async def test_whatever_responses_do_not_support_is_refused_by_name(respond: Any, name: str) -> None:
    engine = FakeEngine()
    error = error_of(await respond(engine, **{name: {"some": ["value"]}}), 400)
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")
    assert engine.prompts == []


NEUTRAL = [{name: value} for name, values in unsupported_by(RESPONSES).items() for value in (None, *values)]
NEUTRAL += [
    {"reasoning": {"summary": "auto", "effort": None}},
    {"include": ["reasoning.encrypted_content"]},
    {"tools": [], "tool_choice": "auto"},
    {"safety_identifier": "a", "prompt_cache_key": "b", "text": {"verbosity": "low"}},
    {"tools": [{**NOW, "async": False, "output_schema": None}], "tool_choice": "none"},
]


@pytest.mark.parametrize("fields", NEUTRAL, ids=str)
async def test_what_asks_nothing_of_a_response_is_accepted(respond: Any, fields: dict[str, Any]) -> None:
    response = await respond(FakeEngine(), **fields)
    assert response.status_code == 200, response.text


async def test_a_value_that_is_quoted_keeps_its_words(respond: Any) -> None:
    error = error_of(await respond(input=[USER, {**OUTPUT, "call_id": "max_tokens"}]), 400)
    assert "'max_tokens'" in error["message"]
    assert error["message"].startswith("input.1.call_id: ")
