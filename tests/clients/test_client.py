"""The client reads answers as they come, and its errors say whose turn it is."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import httpx
import pytest

from asynclane.clients import Client, ConnectionFailed, StatusError, StreamError

from .conftest import ANSWER, USAGE, Stream, chunk

HI: Any = [{"role": "user", "content": "Hi"}]


def replies(*parts: Any, status: int = 200, **headers: str) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda: httpx.Response(status, headers=named, stream=Stream(list(parts)))


def read(connect: Any, reply: Any) -> str:
    with connect(reply) as (client, _), client.chat(HI, model="m") as stream:
        return "".join(delta.text for delta in stream)


def test_an_answer_comes_in_deltas_with_usage_at_the_end(connect: Any) -> None:
    with connect(replies(ANSWER)) as (client, server):
        with client.chat(HI, model="m", options={"temperature": 0.5}) as stream:
            assert stream.usage is None
            deltas = list(stream)
        assert stream.usage is not None
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


def test_lanes_come_in_deltas_of_their_own_to_those_who_ask(connect: Any) -> None:
    lanes = {"step": 0, "computed": [-4, 8], "refresh": False, "lanes": [], "commits": []}
    asked = {"stream_options": {"include_lanes": True}}
    with connect(replies(chunk(lanes=lanes) + ANSWER)) as (client, server):
        with client.chat(HI, model="m", options=asked) as stream:
            deltas = list(stream)
        assert server.body()["stream_options"] == {"include_lanes": True, "include_usage": True}
    assert [delta.lanes for delta in deltas] == [lanes, None, None, None]
    assert "".join(delta.text for delta in deltas) == "Hello wörld"


@pytest.mark.parametrize("at", range(0, len(ANSWER.encode()), 7))
def test_it_does_not_matter_where_the_network_cuts(connect: Any, at: int) -> None:
    data = ANSWER.encode()
    assert read(connect, replies(data[:at], data[at:])) == "Hello wörld"


def test_leaving_early_closes_the_connection(connect: Any) -> None:
    body = Stream([chunk("a"), chunk("b"), RuntimeError("read too far")])
    with connect(lambda: httpx.Response(200, stream=body)) as (client, _):
        with client.chat(HI, model="m") as stream:
            assert next(stream).text == "a"
        assert body.closed


def test_a_refusal_says_what_and_when_to_try_again(connect: Any) -> None:
    error = json.dumps({"error": {"message": "the queue is full", "type": "x", "param": None, "code": "overloaded"}})
    with pytest.raises(StatusError, match="429: the queue is full") as caught:
        read(connect, replies(error, status=429, retry_after="7"))
    assert (caught.value.status, caught.value.code, caught.value.retry_after_s) == (429, "overloaded", 7.0)


def test_a_refusal_names_the_parameter(connect: Any) -> None:
    error = json.dumps({"error": {"message": "bad", "type": "x", "param": "temperature", "code": None}})
    with pytest.raises(StatusError) as caught:
        read(connect, replies(error, status=400))
    assert caught.value.param == "temperature"


@pytest.mark.parametrize("page", ["<html>Bad gateway</html>", "", '{"error": "text"}', "[]"])
def test_a_proxys_page_is_a_refusal_too(connect: Any, page: str) -> None:
    with pytest.raises(StatusError, match="502: Bad Gateway"):
        read(connect, replies(page, status=502))


@pytest.mark.parametrize("name", ["event: error\n", ""])
def test_an_error_within_a_stream_is_raised(connect: Any, name: str) -> None:
    with pytest.raises(StreamError, match="the step failed"):
        read(connect, replies(chunk("a"), name + 'data: {"error": {"message": "the step failed"}}\n\n'))


@pytest.mark.parametrize(
    "parts",
    [
        [chunk("a")],
        [chunk("a"), chunk(finish="stop"), USAGE],
        [],
        [chunk("a"), "data: not JSON\n\n"],
        [chunk("a"), httpx.ReadError("reset")],
        [chunk("a"), httpx.RemoteProtocolError("peer closed")],
    ],
)
def test_a_stream_that_breaks_off_is_never_taken_for_a_whole_answer(connect: Any, parts: list[Any]) -> None:
    with pytest.raises(StreamError):
        read(connect, replies(*parts))


def test_no_server_is_told_with_its_address(connect: Any) -> None:
    def nobody() -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(ConnectionFailed, match="http://test"):
        read(connect, nobody)


@pytest.mark.parametrize("url", ["http://test", "http://test/", "http://test/v1", "http://test/v1/"])
def test_the_models_are_listed_under_either_url(connect: Any, url: str) -> None:
    with connect(replies()) as (_, server), Client(url, api_key="k", transport=server) as client:
        assert client.models() == ["tiny-llada"]
    assert server.requests[0].headers["authorization"] == "Bearer k"


def test_the_client_stands_alone() -> None:
    script = """
import sys, asynclane.clients, asynclane.clients.cli
loaded = {name for name in sys.modules if name.startswith("asynclane.") and not name.startswith("asynclane.clients")}
assert not loaded, loaded
assert not {"torch", "fastapi", "transformers", "numpy"} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
