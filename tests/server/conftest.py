"""The application around a scripted engine, with the embedded model's real tokenizer."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI

from asynclane.server.app import ModelCard, create_app
from asynclane.server.engine.messages import AnswerSource
from asynclane.server.metrics import Metrics
from asynclane.server.settings import Settings
from asynclane.server.text.tokenizer import Tokenizer

from ..support.fake_engine import FakeEngine
from ..support.http import CONTEXT, CREATED, PARAMS, TINY, Api, serving
from ..support.tools import write_checkpoint_with


@pytest.fixture(scope="session")
def text() -> Tokenizer:
    return Tokenizer(TINY)


@pytest.fixture(scope="session")
def tool_text(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The embedded model's tokenizer, with a chat template that shows tools."""
    return Tokenizer(write_checkpoint_with(tmp_path_factory.mktemp("chat") / "model"))


class Relay:
    """The engine of an application: each test gives it one of its own."""

    engine: FakeEngine

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


@pytest.fixture(scope="session")
def build(text: Tokenizer) -> Callable[..., FastAPI]:
    """`build(engine, tokenizer, **settings)`. Applications are slow to make: tests of the same settings share one."""

    @functools.cache
    def shared(tokenizer: Tokenizer, **settings: Any) -> tuple[FastAPI, Relay]:
        card, relay = ModelCard("tiny-llada", CONTEXT, {"asynclane": PARAMS}, "asynclane", CREATED), Relay()
        return create_app(cast(AnswerSource, relay), tokenizer, Settings(**settings), Metrics(), card), relay

    def build(engine: FakeEngine | None = None, tokenizer: Tokenizer = text, **settings: Any) -> FastAPI:
        app, relay = shared(tokenizer, **settings)
        relay.engine = engine or FakeEngine()
        return app

    return build


@pytest.fixture
def api(build: Callable[..., FastAPI]) -> Callable[..., Any]:
    """`async with api(engine, tokenizer=..., **settings) as client`."""

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
