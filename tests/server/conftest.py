"""The application around a scripted engine, with the embedded model's real tokenizer."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from asynclane.server.app import ModelCard, create_app
from asynclane.server.metrics import Metrics
from asynclane.server.settings import Settings
from asynclane.server.text.tokenizer import Tokenizer

from ..support.fake_engine import FakeEngine

TINY = Path(__file__).parents[2] / "models" / "embedded" / "tiny-llada"
CONTEXT = 256
PARAMS = {"threshold": 0.95, "max_lanes": 4, "settle": True, "steps": None, "lookahead": "canvas"}


@pytest.fixture(scope="session")
def text() -> Tokenizer:
    return Tokenizer(TINY)


@pytest.fixture
def build(text: Tokenizer) -> Callable[..., FastAPI]:
    def build(engine: FakeEngine | None = None, **settings: Any) -> FastAPI:
        card = ModelCard("tiny-llada", CONTEXT, {"asynclane": PARAMS}, "asynclane")
        return create_app(engine or FakeEngine(), text, Settings(**settings), Metrics(), card)

    return build


class Api:
    """Posts to one application and reads what comes."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def chat(self, **fields: Any) -> httpx.Response:
        return await self.http.post("/v1/chat/completions", json={**CHAT, **fields})

    async def complete(self, **fields: Any) -> httpx.Response:
        return await self.http.post("/v1/completions", json={**COMPLETION, **fields})

    async def raw(self, path: str, body: str | bytes, kind: str = "application/json") -> httpx.Response:
        return await self.http.post(path, content=body, headers={"content-type": kind})


CHAT: dict[str, Any] = {"model": "tiny-llada", "messages": [{"role": "user", "content": "Hi"}]}
COMPLETION: dict[str, Any] = {"model": "tiny-llada", "prompt": "Hi"}


@pytest.fixture
def api(build: Callable[..., FastAPI]) -> Callable[..., Any]:
    """`async with api(engine, **settings) as client`."""

    @asynccontextmanager
    async def open_api(engine: FakeEngine | None = None, **settings: Any) -> AsyncIterator[Api]:
        # An unexpected exception is raised again behind its response, for the server's log.
        transport = httpx.ASGITransport(build(engine, **settings), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            yield Api(http)

    return open_api


@pytest.fixture
def live(build: Callable[..., FastAPI]) -> Callable[..., Any]:
    """`async with live(engine, **settings) as url`: a real server on a free port, in this event loop."""

    @asynccontextmanager
    async def serve(engine: FakeEngine | None = None, **settings: Any) -> AsyncIterator[str]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            config = uvicorn.Config(build(engine, **settings), log_level="warning", timeout_graceful_shutdown=2)
            server = uvicorn.Server(config)
            running = asyncio.create_task(server.serve(sockets=[listener]))
            while not server.started and not running.done():
                await asyncio.sleep(0.005)
            try:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            finally:
                server.should_exit = True
                await running

    return serve


def error_of(response: httpx.Response) -> dict[str, Any]:
    """OpenAI's error, whose four fields are all there."""
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
