"""A server in a few lines, behind the client's one transport seam."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from asynclane.clients import Client


def chunk(text: str | None = None, finish: str | None = None, **more: Any) -> str:
    delta = {} if text is None else {"content": text}
    body = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"


USAGE = 'data: {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 3}}\n\n'
ANSWER = chunk("") + chunk("Hel") + chunk("lo wörld") + chunk(finish="stop") + USAGE + "data: [DONE]\n\n"
MODELS = '{"object": "list", "data": [{"id": "tiny-llada", "object": "model"}]}'


class Stream(httpx.SyncByteStream):
    """Sends parts one by one; a part that is an exception is raised."""

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts
        self.closed = False

    def __iter__(self) -> Iterator[bytes]:
        for part in self.parts:
            if isinstance(part, BaseException):
                raise part
            yield part.encode() if isinstance(part, str) else part

    def close(self) -> None:
        self.closed = True


class Server(httpx.BaseTransport):
    """Answers with what `reply` says, and keeps the requests."""

    def __init__(self, reply: Callable[[], httpx.Response]) -> None:
        self.reply = reply
        self.requests: list[httpx.Request] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if request.url.path == "/v1/models":
            return httpx.Response(200, text=MODELS)
        return self.reply()

    def body(self, index: int = -1) -> Any:
        return json.loads(self.requests[index].content)


@pytest.fixture
def connect() -> Callable[..., Any]:
    @contextmanager
    def open_client(reply: Callable[[], httpx.Response], **options: Any) -> Iterator[tuple[Client, Server]]:
        server = Server(reply)
        with Client("http://test", transport=server, **options) as client:
            yield client, server

    return open_client
