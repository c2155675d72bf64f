"""`/v1/messages`: what a chat in Anthropic's form becomes, what its answer holds, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from pydantic_core import from_json

from asynclane.server import errors
from asynclane.server.engine.messages import Delta, Finish, Usage
from asynclane.server.text.tokenizer import Tokenizer

from ...support.fake_engine import USAGE, FakeEngine
from ...support.tools import CITY, TEMPLATE, write_checkpoint_with

THINKING = (
    TEMPLATE.replace("(message.content or '')", "((message.reasoning_content or '') + (message.content or ''))")
    + "{%- if reasoning_effort %}effort {{ reasoning_effort }}{% endif -%}"
    + "{%- if enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif -%}"
)
USER = {"role": "user", "content": "Weather?"}
BODY: dict[str, Any] = {"model": "tiny-llada", "max_tokens": 90, "messages": [USER]}
WEATHER: dict[str, Any] = {"name": "get_weather", "description": "Get the weather in a city", "input_schema": CITY}
NOW: dict[str, Any] = {"name": "now", "input_schema": {}}
TOOLS = {"tools": [WEATHER, NOW]}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Pa\\"ris"}}\n</tool_call>'
THOUGHT = "<think>\nIt is in France.\n</think>\n\n"
USE = {"type": "tool_use", "id": "call_1", "name": "get_weather", "input": {"city": "Paris"}}
RESULT: dict[str, Any] = {"type": "tool_result", "tool_use_id": "call_1", "content": "21"}
HISTORY = [USER, {"role": "assistant", "content": [{"type": "text", "text": "I look."}, USE]}]
ANY, NAMED = {"type": "any"}, {"type": "tool", "name": "get_weather"}


def script(text: str, size: int, finish: Finish = Finish.STOP, stop: str | None = None) -> list[Delta]:
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    return [*(Delta(piece, usage=Usage(1)) for piece in pieces), Delta("", finish, USAGE, stop=stop)]


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(write_checkpoint_with(tmp_path_factory.mktemp("thinking") / "model", THINKING))


@pytest.fixture
def send(api: Any, thinking: Tokenizer) -> Callable[..., Any]:
    """`await send(engine, **fields)` with a model that knows tools and reasons; `settings` are the server's."""

    async def send(
        engine: FakeEngine | None = None, settings: Any = None, path: str = "/v1/messages", **fields: Any
    ) -> Any:
        body = {name: value for name, value in {**BODY, **fields}.items() if value is not ...}
        async with api(engine or FakeEngine(), **{"tokenizer": thinking, **(settings or {})}) as client:
            return await client.raw(path, json.dumps(body))

    return send


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream, each named as its type says."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, rest = response.text.split("\n\n")
    assert rest == ""
    found = []
    for name, data in (event.split("\n") for event in events):
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def added_up(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a stream adds up to, as Anthropic's clients have it."""
    first, ping, *events, last, stop = events
    assert (first["type"], ping, stop["type"]) == ("message_start", {"type": "ping"}, "message_stop")
    message, texts = first["message"], dict[int, str]()
    assert (message["content"], message["stop_reason"], message["usage"]["output_tokens"]) == ([], None, 0)
    blocks = message["content"]
    for event in events:
        kind = event["type"].removeprefix("content_block_")
        if kind == "start":
            assert event["index"] == len(blocks) == len(texts)
            blocks.append(event["content_block"])
            texts[event["index"]] = ""
        elif kind == "delta":
            assert event["index"] == len(blocks) - 1
            (added,) = (value for name, value in event["delta"].items() if name != "type")
            texts[event["index"]] += added
        else:
            assert (kind, event["index"]) == ("stop", len(blocks) - 1)
            block, text = blocks[-1], texts[event["index"]]
            if block["type"] == "tool_use":
                block["input"] = from_json(text or "{}", allow_partial=True)
            else:
                block[block["type"]] += text
    assert last["type"] == "message_delta"
    return {**message, **last["delta"], "usage": last["usage"]}


def plain(message: dict[str, Any]) -> dict[str, Any]:
    """A message without what is drawn for each."""
    blocks = [{name: value for name, value in block.items() if name != "id"} for block in message["content"]]
    return {**message, "id": "", "content": blocks}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def thought(said: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": said, "signature": ""}


def use(**values: Any) -> dict[str, Any]:
    return {"type": "tool_use", "name": "get_weather", "input": values}


PARIS, END = use(city='Pa"ris'), Finish.STOP
SAID: list[tuple[str, dict[str, Any], Finish, str | None, list[dict[str, Any]], str]] = [
    ("It rains.", {}, END, None, [text("It rains.")], "end_turn"),
    ("", {}, END, None, [], "end_turn"),
    ("It", {}, Finish.LENGTH, None, [text("It")], "max_tokens"),
    ("It ", {"stop_sequences": ["rains"]}, END, "rains", [text("It ")], "stop_sequence"),
    (CALL, TOOLS, END, None, [PARIS], "tool_use"),
    (f"I look.\n{CALL}\n{CALL}", TOOLS, END, None, [text("I look."), PARIS, PARIS], "tool_use"),
    (f"{CALL}\nThen", TOOLS, END, None, [PARIS, text("Then")], "tool_use"),
    (f"{THOUGHT}{CALL}", TOOLS, END, None, [thought("It is in France."), PARIS], "tool_use"),
    (f"{THOUGHT}Sunny.", {}, END, None, [thought("It is in France."), text("Sunny.")], "end_turn"),
    (CALL, {**TOOLS, "tool_choice": NAMED}, END, None, [PARIS], "tool_use"),
    (CALL, {**TOOLS, "tool_choice": {"type": "none"}}, END, None, [text(CALL)], "end_turn"),
    (
        f"{CALL}\n{CALL}",
        {**TOOLS, "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        *(END, None, [PARIS], "tool_use"),
    ),
    (CALL[:62], {**TOOLS, "tool_choice": ANY}, Finish.LENGTH, None, [use()], "max_tokens"),
]


@pytest.mark.parametrize("said", SAID, ids=range(len(SAID)))
@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_a_stream_adds_up_to_the_whole_message_in_any_pieces(send: Any, said: Any, size: int) -> None:
    words, fields, finish, stop, content, reason = said
    whole = (await send(FakeEngine(script(words, size, finish, stop)), **fields)).json()
    streamed = added_up(events_of(await send(FakeEngine(script(words, size, finish, stop)), stream=True, **fields)))
    assert plain(whole) == plain(streamed)
    assert plain(whole)["content"] == content
    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, stop)
    assert (whole["type"], whole["role"], whole["model"]) == ("message", "assistant", "tiny-llada")
    assert whole["id"].startswith("msg_")


async def test_tokens_are_counted_as_anthropic_counts_them(send: Any) -> None:
    engine = FakeEngine()
    usage = (await send(engine)).json()["usage"]
    assert usage["input_tokens"] + 16 == len(engine.prompts[0])
    assert (usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]) == (16, 0)
    assert (usage["output_tokens"], usage["output_tokens_details"]) == (3, {"thinking_tokens": 0})


async def test_tokens_of_a_prompt_are_counted_without_an_answer(send: Any) -> None:
    engine = FakeEngine()
    fields = {**TOOLS, "system": "Be short.", "messages": [*HISTORY, {"role": "user", "content": [RESULT]}]}
    await send(engine, **fields)
    counted = await send(path="/v1/messages/count_tokens", max_tokens=..., **fields)
    assert counted.json() == {"input_tokens": len(engine.prompts[0])}


async def test_every_parameter_reaches_the_engine(send: Any) -> None:
    engine = FakeEngine()
    given = {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "seed": 3, "stop_sequences": ["x"], "timeout": 9}
    await send(engine, **given, threshold=0.8, decoder="asynclane", cache_salt="s", max_tokens=7)
    (options,) = engine.options
    assert (options.max_tokens, options.temperature, options.top_p, options.top_k) == (7, 0.7, 0.9, 5)
    assert (options.seed, options.stop, options.timeout_s, options.cache_salt) == (3, ("x",), 9, "s")
    assert (options.decoder, options.params) == ("asynclane", (("threshold", 0.8),))


async def test_system_tools_and_results_are_shown_as_those_of_a_chat(api: Any, send: Any, thinking: Tokenizer) -> None:
    """The prompt is the one of the same conversation in OpenAI's form."""
    ours, theirs = FakeEngine(), FakeEngine()
    results = [RESULT, {**RESULT, "content": [text("2"), text("2")], "is_error": True}, text("So?")]
    last = {"role": "assistant", "content": [{**thought("Hm."), "signature": "x"}, text("It")]}
    await send(
        ours, system=[text("Be "), text("short.")], messages=[*HISTORY, {"role": "user", "content": results}, last]
    )
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    messages = [
        {"role": "system", "content": "Be short."},
        USER,
        {"role": "assistant", "content": "I look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "21"},
        {"role": "tool", "tool_call_id": "call_1", "content": "Error: 22"},
        {"role": "user", "content": "So?"},
        {"role": "assistant", "content": "It", "reasoning_content": "Hm."},
    ]
    async with api(theirs, tokenizer=thinking) as client:
        assert (await client.chat(messages=messages)).status_code == 200
    assert ours.prompts == theirs.prompts != []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({**TOOLS, "tool_choice": ANY}, "tools"),
        ({**TOOLS, "tool_choice": NAMED}, "tools"),
        ({"tools": [{**WEATHER, "strict": True}]}, "tools"),
        ({"output_config": {"format": {"type": "json_schema", "schema": CITY}}}, "response_format"),
        ({**TOOLS, "output_config": {"format": {"type": "json_schema", "schema": CITY}}}, "tools"),
        (TOOLS, None),
    ],
)
async def test_a_grammar_guides_calls_and_formats(send: Any, fields: dict[str, Any], param: str | None) -> None:
    engine = FakeEngine()
    await send(engine, **fields)
    grammar = engine.options[0].grammar
    assert (grammar and grammar.param) == param


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"thinking": {"type": "disabled"}}, "<think>\n\n</think>"),
        ({"output_config": {"effort": "low"}}, "effort low"),
    ],
)
async def test_thinking_and_effort_are_variables_of_the_template(
    send: Any, thinking: Tokenizer, fields: dict[str, Any], shown: str
) -> None:
    engine = FakeEngine()
    for given in (fields, {}, {"thinking": {"type": "adaptive"}}):
        await send(engine, **given)
    assert [shown in thinking.decode(prompt, specials=True) for prompt in engine.prompts] == [True, False, False]


async def test_thinking_that_cannot_be_switched_is_refused(send: Any, text: Tokenizer, tool_text: Tokenizer) -> None:
    never = {"tokenizer": tool_text}
    assert "thinking.type" in error_of(await send(settings=never, thinking={"type": "enabled"}), 400)["message"]
    assert (await send(settings=never, thinking={"type": "disabled"})).status_code == 200
    always = {"tokenizer": tool_text, "reasoning_parser": "think"}
    assert "thinking.type" in error_of(await send(settings=always, thinking={"type": "disabled"}), 400)["message"]
    assert (await send(settings=always, thinking={"type": "enabled"})).status_code == 200


NEUTRAL: list[dict[str, Any]] = [
    {"metadata": {"user_id": "u"}, "service_tier": "auto", "cache_control": {"type": "ephemeral"}},
    {"system": [{**text("S"), "cache_control": {"type": "ephemeral", "ttl": "1h"}, "citations": None}]},
    {"messages": [{"role": "user", "content": [{**text("Hi"), "cache_control": {"type": "ephemeral"}}]}]},
    {"tools": [{**WEATHER, "type": "custom", "cache_control": {"type": "ephemeral"}, "eager_input_streaming": True}]},
    {"tools": [], "tool_choice": {"type": "auto"}, "mcp_servers": [], "speed": "standard", "container": None},
    {"messages": [{**USER, "content": [{**text("Hi"), "citations": []}]}, {"role": "assistant", "content": []}]},
    dict.fromkeys("system stop_sequences stream temperature top_p top_k tools tool_choice thinking".split()),
]


@pytest.mark.parametrize("fields", NEUTRAL, ids=range(len(NEUTRAL)))
async def test_what_changes_nothing_is_accepted(send: Any, fields: dict[str, Any]) -> None:
    assert (await send(**fields)).status_code == 200


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """Anthropic's error."""
    assert response.status_code == status, response.text
    body = response.json()
    assert body.keys() == {"type", "error", "request_id"}
    assert (body["type"], body["request_id"]) == ("error", response.headers["x-request-id"])
    assert body["error"].keys() == {"type", "message"}
    return dict(body["error"])


def content(*blocks: dict[str, Any], role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": list(blocks)}]}


def after(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [*HISTORY, {"role": "user", "content": list(blocks)}]}


HOUR = {"type": "ephemeral", "ttl": 5}
BAD: list[tuple[str, dict[str, Any]]] = [
    ("max_tokens is required", {"max_tokens": ...}),
    ("max_tokens", {"max_tokens": 0}),
    ("messages is required", {"messages": ...}),
    ("messages", {"messages": []}),
    ("messages.0.role", {"messages": [{**USER, "role": "tool"}]}),
    ("messages.0.content", {"messages": [{"role": "user"}]}),
    ("messages.0.content", {"messages": [{"role": "user", "content": None}]}),
    ("messages.0.content.0", content("Hi")),  # type: ignore[arg-type]
    ("messages.0.content.0.type", content({"text": "Hi"})),
    ("messages.0.content.0.type", content({"type": "image", "source": {"type": "url", "url": "x"}})),
    ("messages.0.content.0.type", content({"type": "document", "source": {"type": "text", "data": "x"}})),
    ("messages.0.content.0.type", content({"type": ["text"]})),
    ("messages.0.content.0.type", content(USE)),
    ("messages.0.content.1.type", content(text("a"), RESULT, role="assistant")),
    ("messages.0.content.0.text", content({"type": "text"})),
    ("messages.0.content.0.citations", content({**text("a"), "citations": [{"type": "char_location"}]})),
    (
        "messages.0.content.0.cache_control.ttl",
        content({**text("a"), "cache_control": {"type": "ephemeral", "ttl": 5}}),
    ),
    ("messages.0.content.0.tool_use_id", content(RESULT)),
    (
        "messages.2.content.1.tool_use_id",
        {"messages": [*HISTORY, *content(RESULT, {**RESULT, "tool_use_id": "b"})["messages"]]},
    ),
    (
        "messages.2.content.0.content.0.type",
        {"messages": [*HISTORY, *content({**RESULT, "content": [USE]})["messages"]]},
    ),
    ("messages.1.content", {"messages": HISTORY}),  # calls that nothing follows
    ("messages.0.content.0.input", content({**USE, "input": "x"}, role="assistant")),
    ("system.0.type", {"system": [{"type": "image"}]}),
    ("stop_sequences", {"stop_sequences": ["a"] * 17}),
    ("stop_sequences.0", {"stop_sequences": [""]}),
    ("temperature", {"temperature": 3}),
    ("top_k", {"top_k": -1}),
    ("colour", {"colour": 1}),
    ("n: unknown", {"n": 2}),
    ("stop: this endpoint calls it stop_sequences", {"stop": ["x"]}),
    ("response_format: unknown", {"response_format": {"type": "text"}}),
    ("tools.0.function: unknown", {"tools": [{**NOW, "function": {}}]}),
    ("container", {"container": "c"}),
    ("mcp_servers", {"mcp_servers": [{"type": "url"}]}),
    ("thinking.budget_tokens", {"thinking": {"type": "enabled", "budget_tokens": 2000}}),
    ("output_config.effort", {"output_config": {"effort": "max"}}),
    ("output_config.format.schema", {"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}}),
    ("tools.0.type", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
    ("tools.0.name", {"tools": [{**NOW, "name": "a b"}]}),
    ("tools.1.name", {"tools": [NOW, NOW]}),
    ("tools.0.input_schema", {"tools": [{"name": "f"}]}),
    ("tools.0.input_schema.type", {"tools": [{"name": "f", "input_schema": {"type": "array"}}]}),
    ("tools.0.input_schema", {"tools": [{"name": "f", "input_schema": {"uniqueItems": True}}], "tool_choice": ANY}),
    ("tools.0.defer_loading", {"tools": [{**NOW, "defer_loading": True}]}),
    ("tool_choice: any", {"tool_choice": ANY}),
    ("tool_choice.name", {**TOOLS, "tool_choice": {"type": "tool"}}),
    ("tool_choice.name", {**TOOLS, "tool_choice": {"type": "tool", "name": "other"}}),
    ("tool_choice.name", {**TOOLS, "tool_choice": {"type": "auto", "name": "now"}}),
    ("max_tokens", {"max_tokens": 5000}),
    ("timeout", {"timeout": 80_000}),
]


@pytest.mark.parametrize(("named", "fields"), BAD, ids=lambda value: value if isinstance(value, str) else "")
async def test_what_is_wrong_with_a_message_is_named(send: Any, named: str, fields: dict[str, Any]) -> None:
    engine = FakeEngine()
    error = error_of(await send(engine, **fields), 400)
    assert error["type"] == "invalid_request_error"
    assert named in error["message"]
    assert engine.prompts == []


async def test_calls_and_tools_need_a_template_that_shows_them(send: Any, text: Tokenizer) -> None:
    silent = {"tokenizer": text}
    assert error_of(await send(settings=silent, **TOOLS), 400)["message"].startswith("tools: the model's chat template")
    history = {"messages": [*HISTORY, {"role": "user", "content": [RESULT]}], "system": "S"}
    assert error_of(await send(settings=silent, **history), 400)["message"].startswith("messages.1: the model's")
    assert (await send(settings=silent, **TOOLS, tool_choice={"type": "none"})).status_code == 200


@pytest.mark.parametrize(
    ("raised", "shown"),
    [
        (
            "siblings 'isolated' and response_format exclude each other",
            "siblings 'isolated' and output_config.format exclude each other",
        ),
        ("a: b (tools.1.function.parameters.x, tools.2.function.name)", "a: b (tools.1.input_schema.x, tools.2.name)"),
        (
            "stop: not 'response_format', \"it's response_format\", but tool_choice.function.name",
            "stop: not 'response_format', \"it's response_format\", but tool_choice.name",
        ),
        (
            "response_format: /properties/response_format/not is not supported",
            "output_config.format: /properties/response_format/not is not supported",
        ),
        ("reasoning_effort: chat_template_kwargs has another value", None),
    ],
    ids=range(5),
)
async def test_names_of_a_chat_are_anthropics_wherever_they_stand(send: Any, raised: str, shown: str | None) -> None:
    error = error_of(await send(FakeEngine([errors.InvalidValue("siblings", raised)])), 400)
    expected = raised.replace("reasoning_effort", "output_config.effort") if shown is None else shown
    assert error["message"] == expected


@pytest.mark.parametrize(
    ("raised", "status", "kind"),
    [
        (errors.InvalidValue("response_format", "response_format: no"), 400, "invalid_request_error"),
        (errors.Overloaded("full", retry_after_s=7), 429, "rate_limit_error"),
        (errors.TimedOut("late"), 408, "timeout_error"),
        (errors.EngineFailure("the step failed"), 500, "api_error"),
        (RuntimeError("a fault"), 500, "api_error"),
        (errors.Draining(), 503, "overloaded_error"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
@pytest.mark.parametrize("stream", [False, True])
async def test_errors_of_the_engine_have_anthropics_shape(
    send: Any, raised: Exception, status: int, kind: str, stream: bool
) -> None:
    error = error_of(await send(FakeEngine([raised]), stream=stream), status)
    assert error["type"] == kind
    assert not error["message"].startswith("response_format")
    late = await send(FakeEngine([Delta("a", usage=USAGE), raised]), stream=stream)
    if stream:
        *_, last = events_of(late)
        assert (last["type"], last["error"]["type"]) == ("error", kind)
    else:
        assert error_of(late, status)["type"] == kind


async def test_errors_before_the_body_is_read_have_anthropics_shape(api: Any) -> None:
    engine = FakeEngine()
    async with api(engine, api_key="secret", max_body_bytes=100) as client:
        for path in ("/v1/messages", "/v1/messages/", "/v1/messages/count_tokens"):
            assert error_of(await client.raw(path, "{}"), 401)["type"] == "authentication_error"
            client.http.headers["x-api-key"] = "secret"
            assert error_of(await client.raw(path, "x" * 101), 413)["type"] == "request_too_large"
            assert error_of(await client.raw(path, "{"), 400)["type"] == "invalid_request_error"
            assert error_of(await client.http.get(path), 405)["type"] == "invalid_request_error"
            del client.http.headers["x-api-key"]
        client.http.headers["x-api-key"] = "secret"
        engine.full = 7
        full = await client.raw("/v1/messages", "{}")
        assert error_of(full, 429)["type"] == "rate_limit_error"
        assert full.headers["retry-after"] == "7"


@pytest.mark.parametrize("arguments", ['{"city": "\\ud800"}', '{"city": ' + "[" * 300 + "]" * 300 + "}"])
async def test_a_call_with_values_that_no_message_may_have_is_text(send: Any, arguments: str) -> None:
    said = f'<tool_call>\n{{"name": "get_weather", "arguments": {arguments}}}\n</tool_call>'
    answer = await send(FakeEngine(script(said, 9)), **TOOLS)
    assert answer.status_code == 200
    assert answer.json()["content"] == [{"type": "text", "text": said}]  # which can be sent back
