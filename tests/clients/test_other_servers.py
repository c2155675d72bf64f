"""Servers of many makes: an error in any of their forms is one, and what only looks odd is read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from asynclane.clients import Answer, StatusError, StreamError, UnexpectedReply

from ..support.scale import crossed
from .conftest import DONE, HI, chunk, replies, streamed, text

CHOICE = {"index": 0, "delta": {"content": "b"}}
ERRORS: dict[str, tuple[Any, str, str | None]] = {
    "OpenAI": ({"error": {"message": "boom", "type": "x", "code": "c"}}, "boom", "c"),
    "with an id": ({"id": "1", "error": {"message": "boom"}}, "boom", None),
    "OpenRouter": ({"id": "1", "error": {"code": 502, "message": "boom"}, "choices": [CHOICE]}, "boom", "502"),
    "vLLM": ({"object": "error", "message": "boom", "code": 500}, "boom", "500"),
    "FastAPI": ({"detail": "boom"}, "boom", None),
    "FastAPI, a list": ({"detail": [{"loc": ["body"], "msg": "boom"}]}, "boom", None),
    "a text": ({"error": "boom"}, "boom", None),
    "without a reason": ({"error": {"message": None}}, "error", None),
    "empty": ({"error": {}}, "error", None),
    "without choices": ({"status": "failed", "why": "boom"}, "boom", None),
    "nothing at all": ({}, "{}", None),
    "two lines": ({"error": {"message": "bo\nom\u001b[31m"}}, r"^bo om \[31m$", None),
}


@pytest.mark.parametrize(
    ("name", "written", "event"),
    crossed(
        ERRORS,
        [json.dumps, lambda it: json.dumps(it, separators=(",", ":")), "{}".format],
        ["", "event: error\n"],
    ),
)
def test_an_error_in_a_stream_is_never_taken_for_a_part_of_the_answer(
    connect_either: Any, name: str, written: Any, event: str
) -> None:
    body, reason, code = ERRORS[name]
    data = written(body) if written != "{}".format else json.dumps(body, indent=1).replace("\n", "\ndata: ")
    with pytest.raises(StreamError, match=reason) as caught:
        text(connect_either, chunk("a"), f"{event}data: {data}\n\n", DONE)
    assert caught.value.code == code


def test_an_error_event_that_is_no_json_is_told_as_it_is(connect_either: Any) -> None:
    with pytest.raises(StreamError, match="boom"):
        text(connect_either, chunk("a"), "event: error\ndata: boom\n\n", DONE)


@pytest.mark.parametrize(
    "odd",
    [
        'data: {"error": null, "choices": []}\n\n',
        'data: {"choices": null, "usage": null}\n\n',
        'data: {"id": null, "choices": [{"index": null, "delta": null, "finish_reason": null}]}\n\n',
        'data: {"choices": [{"delta": {"content": null}}]}\n\n',
        'data: {"choices": [], "usage": {"prompt_tokens": null}}\n\n',
        'data: {"usage": {"prompt_tokens": 3, "completion_tokens_details": {"forwards": null}}}\n\n',
        "event: ping\ndata: {}\n\n",
        "event: ping\ndata: keepalive\n\n",
        "event: ping\n\n",
        "data:\n\n",
        "data: \n\n",
        ": ping\n\n",
    ],
)
def test_what_says_nothing_is_passed_over(connect_either: Any, odd: str) -> None:
    assert text(connect_either, odd, chunk("a"), odd, chunk("b"), DONE) == "ab"


@pytest.mark.parametrize(
    "end", ["data: [DONE] \n\n", "data:[DONE]\n\n", "data: [DONE]\n", "data: [DONE]", "data: [DONE]\r"]
)
def test_an_end_is_one_however_it_is_written(connect_either: Any, end: str) -> None:
    assert text(connect_either, "\ufeff" + chunk("a"), end) == "a"


def test_content_in_parts_and_reasoning_are_read(connect_either: Any) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]
    thought = [{"choices": [{"delta": {name: "hm", "content": None}}]} for name in ("reasoning_content", "reasoning")]
    events = [*thought, {"choices": [{"delta": {"content": parts}}]}]
    deltas, _ = streamed(connect_either, *(f"data: {json.dumps(event)}\n\n" for event in events), DONE)
    assert [(delta.text, delta.reasoning) for delta in deltas] == [("", "hm"), ("", "hm"), ("ab", "")]


def test_calls_of_tools_are_read_whole_and_in_pieces(connect_either: Any) -> None:
    named = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "now", "arguments": ""}}
    pieces = [[named], [{"index": 0, "function": {"arguments": "{}"}}], None]
    events = [{"choices": [{"delta": {"content": None, "tool_calls": calls}}]} for calls in pieces]
    deltas, _ = streamed(connect_either, *(f"data: {json.dumps(event)}\n\n" for event in events), DONE)
    read = [call for delta in deltas for call in delta.tool_calls]
    assert [(call.id, call.function.name, call.function.arguments) for call in read] == [
        ("call_1", "now", ""),
        ("", "", "{}"),
    ]
    for message in ({"content": None, "tool_calls": [named]}, {"content": "a"}, {"content": "a", "tool_calls": None}):
        answer = Answer.model_validate({"choices": [{"message": message}]})
        assert [call.function.name for call in answer.choices[0].tool_calls] == ["now"] * (not message["content"])


def test_a_null_in_usage_is_no_number_that_was_told(connect_either: Any) -> None:
    event = 'data: {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": null}}\n\n'
    _, usage = streamed(connect_either, event, DONE)
    assert (usage.prompt_tokens, usage.completion_tokens, usage.model_fields_set) == (4, 0, {"prompt_tokens"})


def test_a_usage_below_zero_is_none(connect_either: Any) -> None:
    with pytest.raises(StreamError, match="no Chunk"):
        text(connect_either, chunk("a"), 'data: {"choices": [], "usage": {"completion_tokens": -5}}\n\n', DONE)


WHOLE = json.dumps({"id": None, "choices": [{"message": {"content": "wörld"}}]}, ensure_ascii=False)


@pytest.mark.parametrize(
    "body", [WHOLE.encode(), WHOLE.encode("utf-8-sig"), WHOLE.encode("utf-16")], ids=["UTF-8", "BOM", "UTF-16"]
)
@pytest.mark.parametrize("charset", ["", "; charset=iso-8859-1", "; charset=none"])
def test_whole_answers_are_unicode_whatever_the_header_says(connect_either: Any, body: bytes, charset: str) -> None:
    reply = replies(body, **{"content-type": f"application/json{charset}"})
    with connect_either(reply) as (client, _):
        assert client.chat(HI, model="m").text == "wörld"


# --- Refusals


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{"error": "no such model"}', "404: no such model"),
        ('{"detail": "no such model"}', "404: no such model"),
        ('{"detail": [{"msg": "no such model"}]}', '404: [{"msg": "no such model"}]'),
        ('{"object": "error", "message": "no such model", "code": 404}', "404: no such model"),
        ('{"error": {"message": null}}', "404: Not Found"),
        ('{"error": {"message": "no\\n such \\u001b[31mmodel", "param": ["a"]}}', "404: no such [31mmodel"),
        ("<html>", "404: Not Found"),
    ],
)
def test_a_refusal_keeps_its_reason(connect_either: Any, body: str, message: str) -> None:
    with connect_either(replies(body, status=404)) as (client, _), pytest.raises(StatusError) as caught:
        client.chat(HI, model="m")
    assert str(caught.value) == message


@pytest.mark.parametrize("status", [301, 307, 308])
def test_a_redirect_says_where_to(connect_either: Any, status: int) -> None:
    reply = replies(status=status, location="https://other/v1")
    with connect_either(reply) as (client, _), pytest.raises(StatusError, match="the server is at https://other/v1"):
        client.chat(HI, model="m")


# --- Not this API


@pytest.mark.parametrize(
    "body",
    ["<html>Welcome</html>", "\n\n<!doctype html>\n\n<p>Welcome", '{"error": "Welcome"}', '["Welcome"]', "Welcome"],
)
def test_what_is_no_stream_is_told_as_such(connect_either: Any, body: str) -> None:
    with pytest.raises(UnexpectedReply, match=r"sent no stream: .*Welcome"):
        text(connect_either, body)


@pytest.mark.parametrize("name", ["..", ".", "../../health", "a?b", "a#b", "org/m", "Llama-3.1", "über"])
def test_a_model_is_asked_for_by_its_whole_name_and_nothing_else_is(connect_either: Any, name: str) -> None:
    card = {"id": name, "max_model_len": 64, "decoders": {"llada": {"steps": 4}}}
    with connect_either(replies(json.dumps(card))) as (client, server):
        assert client.model(name).model_dump(include=card.keys()) == card
    (request,) = server.requests
    assert request.url.path == f"/v1/models/{name}"
    assert request.url.raw_path.count(b"/") == 3
    assert not request.url.query


def test_what_a_model_does_not_tell_may_be_null(connect_either: Any) -> None:
    with connect_either(replies('{"id": "m", "max_model_len": null, "decoders": null}')) as (client, _):
        assert client.model("m").decoders == {}
