"""Requests to an application under test, and how its responses are read."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from starlette.types import ASGIApp

from asynclane.server.http.connections import ConnectionConfig
from asynclane.server.settings import Settings

TINY = Path(__file__).parents[2] / "models" / "embedded" / "tiny-llada"
CONTEXT = 256
CREATED = 1_790_000_000
PARAMS = {"threshold": 0.95, "max_lanes": 4, "settle": True, "steps": None, "lookahead": "canvas"}
CHAT: dict[str, Any] = {"model": "tiny-llada", "messages": [{"role": "user", "content": "Hi"}]}
COMPLETION: dict[str, Any] = {"model": "tiny-llada", "prompt": "Hi"}


@asynccontextmanager
async def serving(app: ASGIApp, settings: Settings) -> AsyncIterator[int]:
    """The port of a real server in this event loop."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(ConnectionConfig(app, settings, settings.max_connections or 1000))
        running = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started and not running.done():
            await asyncio.sleep(0.005)
        try:
            yield int(listener.getsockname()[1])
        finally:
            server.should_exit = True
            await running


class Api:
    """Posts to one application and reads what comes."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def chat(self, **fields: Any) -> httpx.Response:
        return await self.raw("/v1/chat/completions", json.dumps({**CHAT, **fields}))

    async def complete(self, **fields: Any) -> httpx.Response:
        return await self.raw("/v1/completions", json.dumps({**COMPLETION, **fields}))

    async def raw(self, path: str, body: str | bytes, kind: str = "application/json") -> httpx.Response:
        return await self.http.post(path, content=body, headers={"content-type": kind})


def error_of(response: httpx.Response, status: int | None = None) -> dict[str, Any]:
    """OpenAI's error, whose four fields are all there."""
    assert status is None or response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    return dict(body["error"])


def chunks_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The chunks of a complete stream."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def choices_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The choice of each chunk of a complete stream, or the choices of a whole answer."""
    if response.headers["content-type"].startswith("text/event-stream"):
        return [chunk["choices"][0] for chunk in chunks_of(response)]
    assert response.status_code == 200, response.text
    return list(response.json()["choices"])
