"""A replica of Ray Serve: one engine, with the server's HTTP application in the same process."""

from __future__ import annotations

import argparse
import os
from contextlib import ExitStack
from typing import Any

from fastapi import FastAPI
from ray import serve
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...server.app import build_service, load
from ...server.logs import STDERR, logging_to
from ...server.metrics import Metrics
from ...server.settings import read_settings
from .exposition import merged

SCRAPE_S = 5.0


class Replica:
    def __init__(self, given: dict[str, str]) -> None:
        """`given` settings beat the environment of this process. Raises `ValueError` and `OSError` with one line that
        says why the model cannot be served."""
        settings = read_settings(argparse.Namespace(**given), os.environ)
        self._logging = ExitStack()
        self._logging.enter_context(logging_to(STDERR, settings.log_level, settings.log_format))
        loaded = load(settings)
        self._parts = loaded.parts
        self._service = build_service(settings, loaded, AllReplicas(loaded.parts.metrics))
        self._service.app.add_middleware(OneRequestId)
        self._stats = 0

    def __serve_build_asgi_app__(self) -> FastAPI:
        return self._service.app

    async def check_health(self) -> None:
        """Raises `RuntimeError` once the engine has failed for good: Ray replaces the replica."""
        if self._service.death.done():
            raise RuntimeError(f"the engine has failed: {self._service.death.result()}")

    async def record_routing_stats(self) -> dict[str, Any]:
        """The stats that `Router` reads. Each has its number, since the router sees one for some time."""
        self._stats += 1
        engine = self._parts.engine
        load = engine.load
        return {
            "number": self._stats,
            "positions": engine.positions_in_flight,
            "requests": load.waiting + load.running,
            "prefixes": self._parts.limits.prefix_sharing,
            "ready": engine.health.ready,
        }

    async def exposition(self) -> tuple[str, bytes]:
        """The name of this replica, and its metrics."""
        return serve.get_replica_context().replica_id.unique_id, self._parts.metrics.exposition()


class AllReplicas:
    """The metrics of an application whose `/metrics` shows those of all replicas. Implements `FrontEndMetrics`."""

    def __init__(self, own: Metrics) -> None:
        self.http_response = own.http_response

    async def scrape(self) -> bytes:
        """A replica that does not answer in time is left out."""
        context = serve.get_replica_context()
        handle = serve.get_deployment_handle(context.deployment, context.app_name)
        pages = await handle.broadcast("exposition").results_async(timeout_s=SCRAPE_S, return_exceptions=True)
        return merged(dict(page for page in pages if not isinstance(page, BaseException)))


class OneRequestId:
    """Leaves `x-request-id` to Ray, which adds one to each response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def without_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                del MutableHeaders(scope=message)["x-request-id"]
            await send(message)

        await self._app(scope, receive, without_id)
