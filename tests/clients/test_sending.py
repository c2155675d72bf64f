"""A value that can never be sent is a ValueError before anything is sent, and its message contains no password."""

from __future__ import annotations

import math
from typing import Any

import httpx
import pytest

from asynclane.clients import ConnectionFailed

from .conftest import ANSWER, HI, failing, replies

SECRET = "s3cret"


answer = replies(ANSWER)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/",
        "http://",
        "localhost:8000",
        "ftp://test",
        "unix:///tmp/x",
        "http://test:99999",
        "http://test:abc",
        "http://[::1",
        "http://te\x00st",
        "http://test?a=b",
        "http://test/v1#x",
        "http://\ud83d",
        f"http://user:{SECRET}/x@test",
        f"http://user:{SECRET}@test:99999",
        f"ftp://user:{SECRET}@test",
    ],
)
def test_a_url_that_is_none_is_a_value_error(connect_either: Any, url: str) -> None:
    with pytest.raises(ValueError, match="is no URL of a server") as caught, connect_either(answer, base_url=url):
        pass
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("key", ["é", "a\nb", "a\x00", "\ud83d"])
def test_a_key_that_cannot_be_sent_is_a_value_error_that_does_not_show_it(connect_either: Any, key: str) -> None:
    with pytest.raises(ValueError, match="cannot be sent") as caught, connect_either(answer, api_key=key):
        pass
    assert key not in str(caught.value)


@pytest.mark.parametrize("timeout", [0, -1, math.nan, math.inf, 1e300, httpx.Timeout(5, connect=-1)])
def test_a_limit_that_is_none_is_a_value_error(connect_either: Any, timeout: Any) -> None:
    with pytest.raises(ValueError, match="a time limit is"), connect_either(answer, timeout=timeout):
        pass


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("value", [math.nan, math.inf, b"a", "\ud83d", {1, 2}, nested(100_000)], ids=type)
def test_a_body_that_is_no_json_is_a_value_error(connect_either: Any, value: Any) -> None:
    with connect_either(answer) as (client, server):
        with pytest.raises(ValueError, match="this cannot be sent as JSON"):
            client.chat(HI, model="m", extra={"x": value})
        with pytest.raises(ValueError, match="this cannot be sent as JSON"):
            list(client.stream_chat(HI, model="m", extra={"x": value}))
    assert server.requests == []


def test_stream_options_may_be_null_and_what_is_none_is_for_the_server_to_say(connect_either: Any) -> None:
    with connect_either(answer) as (client, server):
        list(client.stream_chat(HI, model="m", extra={"stream_options": None}))
        assert server.body()["stream_options"] == {"include_usage": True}
        list(client.stream_chat(HI, model="m", extra={"stream_options": 5}))
        assert server.body()["stream_options"] == 5


def test_a_password_is_used_and_never_shown(connect_either: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"), connect_either(answer, base_url=f"http://user:{SECRET}@test/v1") as (client, server):
        list(client.stream_chat(HI, model="m"))
        assert server.requests[0].headers["authorization"].startswith("Basic ")
        assert SECRET not in f"{server.requests[0].url}{client}{vars(client)}{caplog.text}"

    shown = pytest.raises(ConnectionFailed, match="no server at http://test ")
    with (
        connect_either(failing(httpx.ConnectError("refused")), base_url=f"http://user:{SECRET}@test") as (client, _),
        shown as caught,
    ):
        client.chat(HI, model="m")
    assert SECRET not in str(caught.value)
