"""Assembles the HTTP application around an engine that is given to it, so that tests can give it any."""

from __future__ import annotations

import hmac
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..scheduler import DECODERS, defaults_of, suits
from .api.ops import ModelCard, ops_routes
from .api.page import PATHS as PAGE_PATHS
from .api.page import page_routes
from .api.routes import Backend, completion_routes
from .api.tokenize import token_routes
from .engine.messages import AnswerSource
from .errors import Unauthorized, error_response, install_error_handlers
from .http.body import BodyLimit
from .metrics import Metrics
from .schema.openapi import document
from .settings import Settings, installed_version
from .structured.grammar import Grammars
from .text.tokenizer import TokenizerLike

__all__ = ["Lifespan", "ModelCard", "Service", "build_service", "create_app"]

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]

# Probes and scrapers carry no key, and the page is where one is typed in.
OPEN_PATHS = frozenset({"/health", "/ready", "/metrics"}) | PAGE_PATHS
REQUEST_ID_CHARS = 128


def create_app(
    engine: AnswerSource,
    text: TokenizerLike,
    settings: Settings,
    metrics: Metrics,
    card: ModelCard,
    lifespan: Lifespan | None = None,
    grammars: Grammars | None = None,
) -> FastAPI:
    """`lifespan` starts the engine before the first request and stops it after the last. An engine in this process
    shares its `grammars`, so that none is compiled twice."""
    # FastAPI's pages of the document load their scripts from elsewhere; the document itself needs nothing.
    app = FastAPI(title="asynclane", version=installed_version(), lifespan=lifespan, docs_url=None, redoc_url=None)
    app.include_router(completion_routes(Backend(engine, text, settings, card, grammars or Grammars(text))))
    app.include_router(token_routes(text, card))
    app.include_router(ops_routes(engine, metrics, card))
    app.include_router(page_routes())
    document(app, OPEN_PATHS, has_key=settings.api_key is not None)
    install_error_handlers(app, metrics.http_response)
    # The last one added is the outermost: every response has a request id, and only holders of a
    # key have their bodies read.
    app.add_middleware(BodyLimit, limit_bytes=settings.max_body_bytes, limit_s=settings.body_timeout_s)
    if settings.api_key is not None:
        app.add_middleware(RequireKey, key=settings.api_key)
    app.add_middleware(RequestId, count=metrics.http_response)
    return app


@dataclass(frozen=True, slots=True)
class Service:
    """An application with its engine. `drain` lets running answers finish, for so many seconds at most."""

    app: FastAPI
    drain: Callable[[float], Coroutine[Any, Any, None]]


def build_service(settings: Settings) -> Service:
    """Load the model and build the application. Raises `ValueError` and `OSError` with one line that says what is
    wrong."""
    from .engine.wiring import build_parts  # here, since it imports torch, which no other application needs

    parts = build_parts(settings)
    card = ModelCard(
        id=settings.model_name,
        max_model_len=parts.limits.max_model_len,
        decoders={name: defaults_of(name, parts.pattern) for name in DECODERS if suits(name, parts.pattern)},
        default_decoder=settings.decoder,
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await parts.engine.start()
        try:
            yield
        finally:
            await parts.engine.stop()

    app = create_app(parts.engine, parts.text, settings, parts.metrics, card, lifespan, parts.grammars)
    return Service(app, parts.engine.drain)


class RequestId:
    """Gives every response the request's `x-request-id`, or a new one, and calls `count` with its status."""

    def __init__(self, app: ASGIApp, count: Callable[[int], None]) -> None:
        self._app = app
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        usable = 0 < len(given) <= REQUEST_ID_CHARS and given.isascii() and given.isprintable()
        request_id = given if usable else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
                self._count(message["status"])
            await send(message)

        await self._app(scope, receive, send_with_id)


class RequireKey:
    """Refuses requests without `Authorization: Bearer KEY`, in a time that does not depend on the key."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._expected = key.strip().encode()  # secrets from files end in a line break

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._holds_key(scope):
            await self._app(scope, receive, send)
        else:
            await error_response(Unauthorized())(scope, receive, send)

    def _holds_key(self, scope: Scope) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        scheme, _, key = given.partition(b" ")
        return bool(scheme.lower() == b"bearer" and hmac.compare_digest(key.strip(), self._expected))
