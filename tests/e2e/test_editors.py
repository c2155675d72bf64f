"""Requests of Open WebUI 0.12.4, Zed and Continue 1.3, as their sources build them, against a real server. Zed's
answers are read as its types read them: a field that is missing, or of another type, would end its request."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from ..support.servers import PARIS, Server
from ..support.tools import CITY

MODEL = "tiny-chat"
SPEC: dict[str, Any] = {"name": "get_weather", "description": "Get the weather in a city", "parameters": CITY}
TOOLS: list[Any] = [{"type": "function", "function": SPEC}]
FLAT: dict[str, Any] = {"type": "function", **SPEC}
WEATHER: dict[str, Any] = {"role": "user", "content": "What is the weather in Paris?"}
ARGUMENTS = '{"city": "Paris"}'
RESULT = '{"temperature": 21}'
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": ARGUMENTS}}
TURN: list[Any] = [WEATHER, {"role": "tool", "tool_call_id": "call_1", "content": RESULT}]
SAID = "The temperature is 21."
USAGE = {"include_usage": True}
BEFORE = '''This function does it:
```python
def count_even(numbers):
    """Returns the number of even numbers in a list."""
    count = 0
    for x in numbers:'''
AFTER = """
            count += 1
    return count
```
"""
Post = Callable[..., Any]


@pytest.fixture
def post(open_server: Server) -> Iterator[Post]:
    """`post(path, **fields)` returns an answer, or the events of a stream."""
    with httpx.Client(base_url=open_server.url, timeout=60) as http:

        def post(path: str, headers: dict[str, str] | None = None, **fields: Any) -> Any:
            answer = http.post(path, json={"model": MODEL, **fields}, headers=headers)
            assert answer.status_code == 200, answer.text
            if not fields.get("stream"):
                return answer.json()
            lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
            return [json.loads(line) for line in lines if line != "[DONE]"]

        yield post


def turn(content: object) -> list[Any]:
    """A question, the call that answers it beside some content, and the call's result."""
    return [TURN[0], {"role": "assistant", "content": content, "tool_calls": [CALL]}, TURN[1]]


def deltas(chunks: list[Any]) -> list[Any]:
    return [choice["delta"] for chunk in chunks for choice in chunk["choices"]]


def text(chunks: list[Any]) -> str:
    return "".join(delta.get("content") or "" for delta in deltas(chunks))


def called(chunks: list[Any]) -> tuple[str, str]:
    pieces = [call for delta in deltas(chunks) for call in delta.get("tool_calls", ())]
    assert [piece["index"] for piece in pieces] == [0] * len(pieces)
    names = [piece["function"]["name"] for piece in pieces if "name" in piece["function"]]
    return names[0], "".join(piece["function"]["arguments"] for piece in pieces)


def test_open_webui_chats_calls_tools_and_titles(post: Post) -> None:
    path, chat = "/v1/chat/completions", {"stream": True, "stream_options": USAGE}
    system = {"role": "system", "content": "User Context:\n\nBe kind."}
    options = {"temperature": 0.0, "top_p": 0.9, "max_tokens": 96, "reasoning_effort": "low", "stop": ["###"]}
    found = post(path, **chat, **options, tools=TOOLS, messages=[system, WEATHER], logit_bias={"9": -5})
    assert called(found) == ("get_weather", ARGUMENTS)
    assert found[-1]["usage"]["completion_tokens"] > 0
    assert text(post(path, **chat, tools=TOOLS, messages=turn(""))) == SAID
    begun = {"role": "assistant", "content": "The capital of", "reasoning_content": "It is known."}
    assert text(post(path, **chat, messages=[{"role": "user", "content": PARIS}, begun])) == " France is Paris."
    task = {"role": "user", "content": f"### Task:\nGenerate a title.\n### Chat History:\nUSER: {PARIS}"}
    title = post(path, stream=False, messages=[task], max_tokens=24)
    assert title["choices"][0]["message"]["content"]


def test_open_webui_sends_what_it_has_kept_to_responses(post: Post) -> None:
    asked = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": WEATHER["content"]}]}
    kept: list[Any] = [
        {"type": "reasoning", "id": "r_1", "content": [{"type": "output_text", "text": "Hm."}], "summary": None},
        {"type": "function_call", "id": "call_1", "call_id": "call_1", "name": "get_weather", "arguments": ARGUMENTS},
        {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": RESULT}]},
    ]
    tools = [{**FLAT, "strict": False}]
    events = post("/v1/responses", stream=True, tools=tools, input=[asked, *kept], instructions="Be kind.")
    assert events[-1]["type"] == "response.completed"
    assert "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta") == SAID


def test_zed_chats_and_calls_tools(post: Post) -> None:
    parts = [{"type": "text", "text": "Hello!"}, {"type": "text", "text": WEATHER["content"]}]
    shared: dict[str, Any] = {"stream": True, "stream_options": USAGE, "tools": TOOLS, "prompt_cache_key": "thread"}
    shared |= {"max_completion_tokens": 96, "temperature": 0.0, "reasoning_effort": "medium"}
    found = post(
        "/v1/chat/completions",
        **shared,
        tool_choice="auto",
        parallel_tool_calls=True,
        messages=[{"role": "system", "content": "Be kind."}, {"role": "user", "content": parts}],
    )
    assert called(found) == ("get_weather", ARGUMENTS)
    found += post("/v1/chat/completions", **shared, messages=turn(None))
    assert text(found) == SAID
    for chunk in found:
        assert all(isinstance(choice["index"], int) for choice in chunk["choices"])
        assert chunk.get("usage") is None or all_integers(chunk["usage"], "prompt", "completion", "total")


def all_integers(usage: Any, *names: str) -> bool:
    return all(isinstance(usage[f"{name}_tokens"], int) for name in names)


def test_zed_asks_for_responses(post: Post) -> None:
    call = {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": ARGUMENTS}
    events = post(
        "/v1/responses",
        stream=True,
        store=False,
        include=["reasoning.encrypted_content"],
        reasoning={"effort": "medium", "summary": "auto"},
        input=[
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": WEATHER["content"]}]},
            call,
            {"type": "function_call_output", "call_id": "call_1", "output": RESULT},
        ],
        tools=[FLAT],
        tool_choice="auto",
        parallel_tool_calls=True,
        max_output_tokens=96,
        prompt_cache_key="thread",
    )
    texts = [event for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(event["delta"] for event in texts) == SAID
    assert all(isinstance(event["item_id"], str) and event["output_index"] == 0 for event in texts)
    assert all_integers(events[-1]["response"]["usage"], "input", "output", "total")


def test_zed_predicts_edits(post: Post) -> None:
    """It renders prefix and suffix in the form of a model of its table, and sends one text."""
    prompt = f"<|fim_prefix|>{BEFORE}<|fim_suffix|>{AFTER}<|fim_middle|>"
    stops = ["<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"]
    found = post("/v1/completions", prompt=prompt, max_tokens=16, stop=stops)
    assert {name: type(found[name]) for name in ("id", "object", "created", "model")} == {
        **dict.fromkeys(("id", "object", "model"), str),
        "created": int,
    }
    assert isinstance(found["choices"][0]["text"], str)
    assert found["choices"][0]["finish_reason"] in ("stop", "length")
    assert all_integers(found["usage"], "prompt", "completion", "total")


def test_continue_completes_where_the_cursor_is(post: Post) -> None:
    """As a model of Inception, which fills the middle, and as any other one, by the form of Starcoder."""
    stops = ["/src/", "#- coding: utf-8", "```"]
    options: dict[str, Any] = {"temperature": 0, "stream": True}
    inception = {"presence_penalty": 1.5, "stop": ["<|endoftext|>", *stops, "\n\n", "\n \n"]}
    chunks = post("/v1/completions", prompt=BEFORE, suffix=AFTER, max_tokens=10, **options, **inception)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "\n        if x % 2 == 0:"
    marks = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<file_sep>", "<|endoftext|>", "</fim_middle>", "</code>"]
    prompt = f"<fim_prefix>{BEFORE}<fim_suffix>{AFTER}<fim_middle>"
    chunks = post("/v1/completions", prompt=prompt, max_tokens=16, stop=[*marks, *stops], **options)
    assert chunks[-1]["choices"][0]["finish_reason"] in ("stop", "length")


def test_continue_chats_and_calls_tools(post: Post) -> None:
    options: dict[str, Any] = {"stream": True, "stream_options": USAGE, "max_tokens": 96, "temperature": 0.0}
    keys = {"x-api-key": "", "authorization": "Bearer none"}
    path = "/v1/chat/completions"
    found = post(path, keys, **options, tools=TOOLS, parallel_tool_calls=False, messages=[WEATHER], nextEdit=False)
    assert called(found) == ("get_weather", ARGUMENTS)
    assert text(post(path, keys, **options, tools=TOOLS, messages=turn(" "))) == SAID
