"""A refusal that is about the moment is tried again, as often and as late as it should be, and nothing else is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from asynclane.clients import ConnectionFailed, Retry, StatusError, StreamError

from .conftest import ANSWER, HI, Stream, chunk

NOW = 1_800_000_000.0  # Fri, 15 Jan 2027 08:00:00 GMT


def fixed(**options: Any) -> Retry:
    """No chance: each wait is as long as it can be."""
    return Retry(**{"clock": lambda: NOW, "draw": lambda: 1.0, **options})


def refused(status: int, retry_after: str | None = None) -> httpx.Response:
    body = json.dumps({"error": {"message": "not now", "code": "overloaded"}})
    return httpx.Response(status, text=body, headers={} if retry_after is None else {"retry-after": retry_after})


def whole() -> httpx.Response:
    return httpx.Response(200, text='{"choices": [{"message": {"content": "Hello"}}]}')


def streamed(*parts: Any) -> httpx.Response:
    return httpx.Response(200, stream=Stream(list(parts)))


@pytest.fixture
def ask(connect_either: Any) -> Any:
    """Send a request that gets these replies; return what was said, the waits, and how many requests there were."""

    def ask(*replies: Any, retry: Retry | None = None, stream: bool = False) -> tuple[Any, list[float], int]:
        waits: list[float] = []
        coming: Iterator[Any] = iter(replies)

        def reply() -> httpx.Response:
            response = next(coming)
            if isinstance(response, Exception):
                raise response
            return response

        with connect_either(reply, retry=retry or fixed(), sleep=waits.append) as (client, server):
            try:
                if stream:
                    with client.stream_chat(HI, model="m") as deltas:
                        said: Any = "".join(delta.text for delta in deltas)
                else:
                    said = client.chat(HI, model="m").text
            except (StatusError, StreamError, ConnectionFailed) as error:
                said = error
        bodies = {request.content for request in server.requests}
        assert len(bodies) == 1
        return said, waits, len(server.requests)

    return ask


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("stream", [False, True])
def test_a_busy_server_is_asked_again_ever_later(ask: Any, status: int, stream: bool) -> None:
    answer = streamed(ANSWER) if stream else whole()
    said, waits, _ = ask(refused(status), refused(status), refused(status), answer, retry=fixed(times=3), stream=stream)
    assert said == ("Hello wörld" if stream else "Hello")
    assert waits == [0.5, 1.0, 2.0]


def test_waits_are_drawn_at_random_up_to_a_longest_one(ask: Any) -> None:
    draws = iter([0.1, 0.2, 0.3, 0.4])
    retry = fixed(times=4, first_s=10.0, longest_s=30.0, draw=lambda: next(draws))
    _, waits, _ = ask(*[refused(429)] * 4, whole(), retry=retry)
    assert waits == pytest.approx([1.0, 4.0, 9.0, 12.0])


@pytest.mark.parametrize(
    ("header", "wait_s"),
    [
        ("7", 7.5),
        ("0", 0.5),
        ("Fri, 15 Jan 2027 08:00:05 GMT", 5.5),
        ("Fri, 15 Jan 2027 07:00:00 GMT", 0.5),  # past
        ("Fri, 15 Jan 2027 08:00:05", 5.5),  # without a zone, it is UTC
        ("1.5", 2.0),
        ("soon", 0.5),
        # What no clock can hold says nothing.
        ("Mon, 01 Jan 0001 00:00:00 +2359", 0.5),
        ("Fri, 31 Dec 99999 23:59:59 GMT", 0.5),
        ("Fri, 15 Jan 2027 08:00:05 +999999999999999999", 0.5),
        ("1e3", 0.5),
        ("-3", 0.5),
        ("", 0.5),
    ],
)
def test_no_client_comes_back_before_the_server_said(ask: Any, header: str, wait_s: float) -> None:
    said, waits, _ = ask(refused(429, header), whole())
    assert (said, waits) == ("Hello", [wait_s])


def test_a_server_that_asks_for_too_much_patience_is_not_waited_for(ask: Any) -> None:
    said, waits, requests = ask(refused(503, "3600"))
    assert (said.status, said.retry_after_s, waits, requests) == (503, 3600.0, [], 1)


@pytest.mark.parametrize("header", ["9" * 400, "9" * 400 + ".5", "Fri, 31 Dec 9999 23:59:59 -2359"])
def test_the_longest_waits_are_too_long_and_no_fault(ask: Any, header: str) -> None:
    said, waits, requests = ask(refused(429, header))
    assert (said.status, said.retry_after_s > 1e9, waits, requests) == (429, True, [], 1)


@pytest.mark.parametrize("retries", [0, 63, 64, 1100, 10**9])
def test_any_number_of_retries_has_a_wait(retries: int) -> None:
    wait_s = fixed(times=10**10).wait_after(httpx.Response(503), retries)
    assert wait_s == (0.5 if not retries else 8.0)


def test_the_last_refusal_is_raised_when_patience_ends(ask: Any) -> None:
    said, waits, requests = ask(refused(503), refused(503), refused(429, "2"))
    assert (said.status, said.retry_after_s, len(waits), requests) == (429, 2.0, 2, 3)


@pytest.mark.parametrize("status", [400, 401, 404, 408, 413, 500, 502])
def test_other_refusals_are_final(ask: Any, status: int) -> None:
    said, waits, requests = ask(refused(status, "1"))
    assert (said.status, waits, requests) == (status, [], 1)


def test_a_server_that_is_not_there_is_told_at_once(ask: Any) -> None:
    said, waits, requests = ask(httpx.ConnectError("refused"))
    assert isinstance(said, ConnectionFailed)
    assert (waits, requests) == ([], 1)


@pytest.mark.parametrize(
    "rest", [httpx.ReadError("reset"), 'event: error\ndata: {"error": {"message": "x", "code": "overloaded"}}\n\n']
)
@pytest.mark.parametrize("begun", [[chunk("a")], [chunk("")], []])
def test_a_stream_is_never_begun_twice(ask: Any, begun: list[str], rest: Any) -> None:
    said, waits, requests = ask(streamed(*begun, rest), stream=True)
    assert isinstance(said, StreamError)
    assert (waits, requests) == ([], 1)


def test_refused_responses_give_their_connections_back(connect_either: Any) -> None:
    bodies = [Stream(["busy"]), Stream(["busy"]), Stream([ANSWER])]
    coming = iter(zip([429, 503, 200], bodies, strict=True))

    def reply() -> httpx.Response:
        status, body = next(coming)
        return httpx.Response(status, stream=body)

    with connect_either(reply, retry=fixed(), sleep=lambda seconds: None) as (client, _):
        list(client.stream_chat(HI, model="m"))
        assert [body.closed for body in bodies] == [True, True, True]
