"""The application around a scripted engine, with the embedded model's real tokenizer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from asynclane.server.app import ModelCard, create_app
from asynclane.server.metrics import Metrics
from asynclane.server.settings import Settings
from asynclane.server.text.tokenizer import Tokenizer

from ..support.fake_engine import FakeEngine
from ..support.http import CONTEXT, PARAMS, TINY, Api, serving


@pytest.fixture(scope="session")
def text() -> Tokenizer:
    return Tokenizer(TINY)


@pytest.fixture
def build(text: Tokenizer) -> Callable[..., FastAPI]:
    def build(engine: FakeEngine | None = None, **settings: Any) -> FastAPI:
        card = ModelCard("tiny-llada", CONTEXT, {"asynclane": PARAMS}, "asynclane")
        return create_app(engine or FakeEngine(), text, Settings(**settings), Metrics(), card)

    return build


@pytest.fixture
def api(build: Callable[..., FastAPI]) -> Callable[..., Any]:
    """`async with api(engine, **settings) as client`."""

    @asynccontextmanager
    async def open_api(engine: FakeEngine | None = None, **settings: Any) -> AsyncIterator[Api]:
        # An unexpected exception is raised again after its response, for the server's log.
        transport = httpx.ASGITransport(build(engine, **settings), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            yield Api(http)

    return open_api


@pytest.fixture
def live(build: Callable[..., FastAPI]) -> Callable[..., Any]:
    """`async with live(engine, **settings) as url`: a real server on a free port, in this event loop."""

    @asynccontextmanager
    async def serve(engine: FakeEngine | None = None, **settings: Any) -> AsyncIterator[str]:
        async with serving(build(engine, **settings), Settings(**settings)) as port:
            yield f"http://127.0.0.1:{port}"

    return serve
