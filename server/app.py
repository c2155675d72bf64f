"""The application factory. The engine is injected, so that tests can pass any."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from ..scheduler import ALL_DECODERS, all_words, defaults_of, suits
from .api.chat import chat_routes
from .api.completions import completion_routes
from .api.generation import ENCODED_AT_ONCE, FEW_SCORES, SHORT_CHARS, Backend
from .api.messages import message_routes
from .api.ops import ops_routes
from .api.page import PATHS as PAGE_PATHS
from .api.page import page_routes
from .api.responses import response_routes
from .api.tokenize import token_routes
from .engine.messages import AnswerSource
from .errors import Panics, install_error_handlers
from .frontend.client import EngineClient
from .http.keys import Keys, RequireKey
from .http.limits import SMALL_BYTES, Bodies
from .http.paths import PlainPaths
from .http.request_log import RequestLog
from .metrics import FrontEndMetrics
from .off_loop import OffLoop
from .schema.limits import default_body_bytes
from .schema.openapi import document
from .schema.responses import ModelCard
from .settings import Settings, installed_version, split_origins, traces_url
from .structured.grammar import Grammars
from .text.answer_formats import answer_formats
from .text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from .engine.wiring import EngineParts
    from .tracing import Tracing

__all__ = ["Lifespan", "ModelCard", "Service", "build_service", "create_app", "load"]

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]

STOP_S = 5.0  # for the step in flight when all answers have ended

# Probes and scrapers have no key, and the page is where a user enters one.
OPEN_PATHS = frozenset({"/health", "/ready", "/metrics"}) | PAGE_PATHS


def create_app(
    engine: AnswerSource,
    tokenizer: Tokenizer,
    settings: Settings,
    metrics: FrontEndMetrics,
    card: ModelCard,
    lifespan: Lifespan | None = None,
    grammars: Grammars | None = None,
    keys: Keys | None = None,
    tracing: Tracing | None = None,
) -> FastAPI:
    """`lifespan` starts the engine before the first request and stops it after the last. An engine in this process
    shares its `grammars`, so that none is compiled twice. Without `keys`, those of the settings are read. Without
    `tracing`, there are no traces."""
    keys = Keys.of(settings) if keys is None else keys
    # FastAPI's documentation pages load scripts from a content delivery network; /openapi.json needs nothing.
    app = FastAPI(
        title="asynclane",
        version=installed_version(),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # `PlainPaths` serves both forms
    )
    app.state.engine = engine
    app.state.bodies = Bodies(
        OffLoop(SMALL_BYTES, at_once=1, max_waiting=settings.max_queue),
        limit_bytes=settings.max_body_bytes or default_body_bytes(card.max_model_len),
        limit_s=settings.body_timeout_s,
        least_rate=settings.min_body_bytes_per_s,
        total_bytes=settings.max_unread_bytes,
    )
    encoding = OffLoop(SHORT_CHARS, at_once=ENCODED_AT_ONCE, max_waiting=settings.max_queue)
    writing = OffLoop(FEW_SCORES, at_once=1, max_waiting=sys.maxsize)  # what is computed is never refused
    grammars = grammars or Grammars(tokenizer, settings.grammar_timeout_s, settings.grammar_memory_mb)
    formats = answer_formats(tokenizer.template, settings.tool_parser, settings.reasoning_parser)
    backend = Backend(engine, tokenizer, settings, card, grammars, encoding, writing, formats)
    for router in (
        chat_routes(backend),
        completion_routes(backend),
        response_routes(backend),
        *message_routes(backend),
        token_routes(backend),
        ops_routes(engine, metrics, card),
        page_routes(),
    ):
        app.include_router(router)
    document(app, OPEN_PATHS, has_key=bool(keys), words=card.words)
    install_error_handlers(app, metrics.http_response)
    app.add_middleware(Panics)
    # The middleware added last is the outermost: every response has a request id and a line in the log. Routes read
    # bodies themselves, after the key has been checked.
    if keys:
        app.add_middleware(RequireKey, keys=keys, open_paths=OPEN_PATHS)
    if settings.allowed_origins:  # outside of the key: a browser's preflight request has none
        app.add_middleware(
            CORSMiddleware,
            allow_origins=split_origins(settings.allowed_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after"],
        )
    app.add_middleware(PlainPaths)
    app.add_middleware(RequestLog, count=metrics.http_response, tracing=tracing)
    return app


def open_tracing(settings: Settings, model: str) -> Tracing | None:
    """The traces of this process, if the settings want any. Raises `SettingsError`."""
    url = traces_url(settings, os.environ)
    if url is None:
        return None
    from .tracing import Tracing  # here, since it needs an extra

    return Tracing(url, model)


@dataclass(frozen=True, slots=True)
class Service:
    """An application with its engine. `drain` lets running answers finish, for so many seconds at most. `death` has
    the reason once the engine has failed for good; its callbacks run in any thread."""

    app: FastAPI
    drain: Callable[[float], Coroutine[Any, Any, None]]
    death: Future[str]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that is ready to be served by so many front-end processes, or in this one if `frontends` is 0."""

    parts: EngineParts
    card: ModelCard
    keys: Keys
    frontends: int


def load(settings: Settings) -> Loaded:
    """Load the model. Raises `ValueError` and `OSError` with one line that says what is wrong."""
    from .engine.wiring import build_parts  # here, since it imports torch, which no other application needs

    keys = Keys.of(settings)  # first, since a model takes long to load
    parts = build_parts(settings)
    formats = answer_formats(parts.text.template, settings.tool_parser, settings.reasoning_parser)
    if formats.misfit:
        logging.getLogger(__name__).warning("requests with tools are refused: %s", formats.no_tools)
    line = parts.line
    vocabulary = parts.text.vocabulary
    suited = [name for name in ALL_DECODERS if name == line.name or suits(name, parts.pattern, vocabulary=vocabulary)]
    card = ModelCard(
        id=settings.model_name,
        max_model_len=parts.limits.max_model_len,
        decoders={
            name: {**defaults_of(name, parts.pattern), **(line.params if name == line.name else {})} for name in suited
        },
        default_decoder=line.name,
        created=int(time.time()),
        words={name: all_words(name, parts.pattern) for name in suited},
        aliases=settings.model_names[1:],
    )
    return Loaded(parts, card, keys, settings.front_ends(parts.on_gpu))


def build_service(settings: Settings, loaded: Loaded | None = None, metrics: FrontEndMetrics | None = None) -> Service:
    """Build the application beside its engine, in this process. `metrics` stand for the engine's own in its routes.
    Raises what `load` does."""
    loaded = loaded or load(settings)
    parts, keys = loaded.parts, loaded.keys
    tracing = open_tracing(settings, loaded.card.id)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await parts.engine.start()
        if settings.api_key_file is not None and threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, keys.reload)
        try:
            yield
        finally:
            await parts.engine.stop(STOP_S)
            parts.close()
            if tracing is not None:
                await asyncio.to_thread(tracing.close)

    engine = EngineClient(parts.text, parts.metrics)
    engine.join(parts.engine)
    metrics = metrics or parts.metrics
    app = create_app(engine, parts.text, settings, metrics, loaded.card, lifespan, parts.grammars, keys, tracing)
    return Service(app, parts.engine.drain, parts.engine.death)
