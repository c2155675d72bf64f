"""Either client reads answers as they come, and its errors say whose turn it is."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from typing import Any

import httpx
import pytest

from asynclane.clients import (
    AsyncClient,
    Client,
    ConnectionFailed,
    StatusError,
    StreamError,
    TimedOut,
    UnexpectedReply,
)
from asynclane.clients.reader import StreamReader

from .conftest import ANSWER, DONE, HI, USAGE, Stream, chunk, failing, replies, text


@pytest.fixture
def connect(connect_either: Any) -> Any:
    return connect_either


def test_an_answer_comes_in_deltas_with_usage_at_the_end(connect: Any) -> None:
    with connect(replies(ANSWER)) as (client, server):
        with client.stream_chat(HI, model="m", temperature=0.5) as stream:
            assert stream.usage is None
            deltas = list(stream)
        assert stream.usage.completion_tokens == 3
    assert [(delta.text, delta.finish_reason) for delta in deltas] == [
        ("Hel", None),
        ("lo wörld", None),
        ("", "stop"),
    ]
    assert server.body() == {
        "temperature": 0.5,
        "model": "m",
        "messages": HI,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_a_stream_can_be_read_without_a_with_and_closes_itself(connect: Any) -> None:
    body = Stream([ANSWER])
    with connect(lambda: httpx.Response(200, stream=body)) as (client, _):
        stream = client.stream_chat(HI, model="m")
        assert "".join(delta.text for delta in stream) == "Hello wörld"
        assert body.closed
        assert list(stream) == []


def test_a_whole_answer_has_text_and_usage_with_its_cost(connect: Any) -> None:
    cost = {"forwards": 2, "computed_tokens": 90, "lanes": 3, "forks": 1, "refreshes": 0}
    choice = {"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 4, "completion_tokens": 1, "total_tokens": 5, "completion_tokens_details": cost}
    whole = json.dumps({"id": "x", "model": "m", "choices": [choice], "usage": usage})
    with connect(replies(whole)) as (client, server):
        answer = client.chat(HI, model="m", max_tokens=3, extra={"guided": True})
    assert (answer.text, answer.choices[0].finish_reason) == ("Hello", "stop")
    assert answer.usage.cost.model_dump() == cost
    assert server.body() == {"model": "m", "messages": HI, "max_tokens": 3, "guided": True}


def test_another_servers_details_of_usage_are_no_cost(connect: Any) -> None:
    usage = {"completion_tokens": 1, "completion_tokens_details": {"reasoning_tokens": 7}}
    whole = json.dumps({"choices": [{"message": {"content": None}}], "usage": usage})
    with connect(replies(whole)) as (client, _):
        answer = client.chat(HI, model="m")
    assert (answer.text, answer.usage.completion_tokens, answer.usage.cost) == ("", 1, None)


def test_text_is_completed_whole_or_in_deltas(connect: Any) -> None:
    choices = [{"index": i, "text": text, "finish_reason": "length"} for i, text in enumerate(["one", "two"])]
    whole = replies(json.dumps({"choices": choices}))
    with connect(whole) as (client, server):
        answer = client.complete(["a", "b"], model="m", suffix="!")
        assert server.requests[-1].url.path == "/v1/completions"
    assert [choice.text for choice in answer.choices] == ["one", "two"]
    assert server.body() == {"model": "m", "prompt": ["a", "b"], "suffix": "!"}
    events = [f"data: {json.dumps({'choices': [choice]})}\n\n" for choice in choices]
    with connect(replies(*events, "data: [DONE]\n\n")) as (client, server):
        with client.stream_complete(["a", "b"], model="m") as stream:
            assert [(delta.index, delta.text) for delta in stream] == [(0, "one"), (1, "two")]
        assert server.body()["stream_options"] == {"include_usage": True}


def test_lanes_come_typed_in_deltas_of_their_own_to_those_who_ask(connect: Any) -> None:
    lane = {"id": 2, "parent": 1, "role": "generate", "start": 6, "end": 8, "fate": "live", "tokens": [None, " it"]}
    event = {
        "step": 4,
        "computed": [-4, 8],
        "refresh": False,
        "lanes": [lane],
        "commits": [{"position": 7, "text": " it"}],
    }
    with connect(replies(chunk(lanes=event) + ANSWER)) as (client, server):
        with client.stream_chat(HI, model="m", lanes=True) as stream:
            first, *others = list(stream)
        assert server.body()["stream_options"] == {"include_lanes": True, "include_usage": True}
    assert (first.text, first.lanes.computed, first.lanes.lanes[0].tokens) == ("", (-4, 8), [None, " it"])
    assert first.lanes.model_dump(mode="json") == event
    assert [delta.lanes for delta in others] == [None, None, None]


def test_what_diffuses_comes_whole_in_each_delta_and_gaps_come_typed(connect: Any) -> None:
    gaps = [{"text": "b", "tokens": 2}]
    last = {"choices": [{"index": 0, "text": "ab", "finish_reason": "stop", "gaps": gaps}], "diffusing": True}
    parts = chunk("", diffusing=True) + chunk("_b", diffusing=True) + f"data: {json.dumps(last)}\n\n" + DONE
    with connect(replies(parts)) as (client, server):
        template = ["a", {"tokens": 2}]
        with client.stream_complete(None, model="m", template=template, diffusing=True) as stream:
            deltas = list(stream)
        assert (server.body()["prompt"], server.body()["template"]) == (None, template)
    assert [(delta.text, delta.diffusing) for delta in deltas] == [("", True), ("_b", True), ("ab", True)]
    assert [(gap.text, gap.tokens) for gap in deltas[-1].gaps] == [("b", 2)]


def test_logprobs_come_as_the_server_wrote_them(connect: Any) -> None:
    logprobs = {"content": [{"token": "a", "logprob": -0.5, "step": 3}]}
    choice = {"index": 0, "delta": {"content": "a"}, "logprobs": logprobs}
    with connect(replies(f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n")) as (client, _):
        (delta,) = client.stream_chat(HI, model="m", logprobs=True)
    assert delta.logprobs == logprobs


def test_tokens_are_counted_and_turned_back_into_text(connect: Any) -> None:
    with connect(replies('{"count": 2, "max_model_len": 9, "tokens": [5, 6], "token_strs": null}')) as (client, server):
        tokens = client.tokenize("Hi", model="m", add_special_tokens=False)
        assert (server.requests[-1].url.path, server.body()) == (
            "/tokenize",
            {"model": "m", "prompt": "Hi", "add_special_tokens": False},
        )
        assert client.tokenize(HI, model="m").tokens == [5, 6]
        assert server.body() == {"model": "m", "messages": HI}
    assert (tokens.count, tokens.max_model_len) == (2, 9)
    with connect(replies('{"prompt": "Hi"}')) as (client, server):
        assert client.detokenize([5, 6], model="m") == "Hi"
        assert server.body() == {"model": "m", "tokens": [5, 6]}


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
def test_deltas_are_whole_characters_wherever_bytes_are_cut(ends: str) -> None:
    text = chunk("wö") + ": still here\n\n" + chunk("rld 🦆") + "data: [DONE]\n\n"
    data = text.replace("\n", ends).encode()
    for at in range(len(data)):
        reader = StreamReader()
        deltas = [delta.text for part in (data[:at], data[at:]) for delta in reader.feed(part)]
        assert deltas == ["wö", "rld 🦆"]
        reader.end()


def test_leaving_early_closes_the_connection(connect: Any) -> None:
    body = Stream([chunk("a"), chunk("b"), RuntimeError("read too far")])
    with connect(lambda: httpx.Response(200, stream=body)) as (client, _):
        with client.stream_chat(HI, model="m") as stream:
            assert next(stream).text == "a"
        assert body.closed


def test_a_refusal_says_what_and_when_to_try_again(connect: Any) -> None:
    error = json.dumps({"error": {"message": "the queue is full", "type": "x", "param": "n", "code": "overloaded"}})
    with pytest.raises(StatusError, match="429: the queue is full") as caught:
        text(connect, error, status=429, retry_after="7", x_request_id="r1")
    assert (caught.value.status, caught.value.code, caught.value.retry_after_s) == (429, "overloaded", 7.0)
    assert (caught.value.param, caught.value.request_id) == ("n", "r1")


@pytest.mark.parametrize("page", ["<html>Bad gateway</html>", "", '{"error": {"message": null}}', "[]", b"\xff"])
def test_a_proxys_page_is_a_refusal_too(connect: Any, page: str | bytes) -> None:
    with pytest.raises(StatusError, match="502: Bad Gateway"):
        text(connect, page, status=502)


@pytest.mark.parametrize("name", ["event: error\n", ""])
def test_an_error_within_a_stream_is_raised_behind_the_text_before_it(connect: Any, name: str) -> None:
    error = name + 'data: {"error": {"message": "the step failed", "code": "engine_failure"}}\n\n'
    with connect(replies(chunk("a") + error)) as (client, _), client.stream_chat(HI, model="m") as stream:
        assert next(stream).text == "a"
        with pytest.raises(StreamError, match="the step failed") as caught:
            next(stream)
    assert caught.value.code == "engine_failure"


@pytest.mark.parametrize(
    "parts",
    [
        [chunk("a")],
        [chunk("a"), chunk(finish="stop"), USAGE],
        [],
        [chunk("a"), "data: not JSON\n\n"],
        [chunk("a"), 'data: {"choices": [{"delta": {"content": "\\ud83e"}}]}\n\n'],
        [chunk("a"), httpx.ReadError("reset")],
        [chunk("a"), httpx.RemoteProtocolError("peer closed")],
    ],
)
def test_a_stream_that_breaks_off_is_never_taken_for_a_whole_answer(connect: Any, parts: list[Any]) -> None:
    with pytest.raises(StreamError):
        text(connect, *parts)


@pytest.mark.parametrize("body", ["", "<html>Welcome</html>", '{"choices": []}', '{"object": "list"}'])
def test_what_is_no_answer_is_told_as_such(connect: Any, body: str) -> None:
    with connect(replies(body)) as (client, _), pytest.raises(UnexpectedReply, match="the server sent no Answer"):
        client.chat(HI, model="m")


def test_no_server_is_told_with_its_address(connect: Any) -> None:
    with pytest.raises(ConnectionFailed, match="no server at http://test"):
        text(connect, failing(httpx.ConnectError("refused")))


def test_a_connection_that_fails_within_a_whole_answer_is_told(connect: Any) -> None:
    with connect(replies("{", httpx.ReadError("reset"))) as (client, _), pytest.raises(ConnectionFailed, match="reset"):
        client.chat(HI, model="m")


def test_a_time_limit_is_told_before_and_within_an_answer(connect: Any) -> None:
    with pytest.raises(TimedOut, match="http://test did not answer in time"):
        text(connect, failing(httpx.ConnectTimeout("")))
    with pytest.raises(TimedOut, match="fell silent"):
        text(connect, chunk("a"), httpx.ReadTimeout(""))


def test_the_time_limit_is_the_callers(connect: Any) -> None:
    with connect(replies(ANSWER), timeout=1.5) as (client, server):
        list(client.stream_chat(HI, model="m"))
    assert server.requests[0].extensions["timeout"] == dict.fromkeys(["connect", "read", "write", "pool"], 1.5)


@pytest.mark.parametrize("url", ["http://test", "http://test/", "http://test/v1", "http://test/v1/"])
def test_the_models_are_listed_under_either_url(connect: Any, url: str) -> None:
    with connect(replies(), base_url=url, api_key="k") as (client, server):
        assert [model.id for model in client.models()] == ["tiny-llada"]
    assert server.requests[0].headers["authorization"] == "Bearer k"


def test_both_clients_have_the_same_calls_with_the_same_parameters() -> None:
    def calls(kind: type) -> dict[str, list[str]]:
        members = inspect.getmembers(kind, inspect.isfunction)
        return {name: list(inspect.signature(it).parameters) for name, it in members if not name.startswith("_")}

    assert calls(Client) == calls(AsyncClient)


def test_the_client_stands_alone() -> None:
    script = """
import sys, asynclane.clients, asynclane.clients.cli
loaded = {name for name in sys.modules if name.startswith("asynclane.") and not name.startswith("asynclane.clients")}
assert not loaded, loaded
assert not {"torch", "fastapi", "transformers", "numpy"} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
