"""Endpoints for operators and tools: the served model, liveness, readiness, metrics, version."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from ..engine.messages import AnswerSource
from ..metrics import CONTENT_TYPE, FrontEndMetrics
from ..schema.openapi import EXPOSITION, FAILED, NO_MODEL, NOT_READY, UNAUTHORIZED, Model, Models, Status, Version
from ..schema.responses import ModelCard
from ..settings import installed_version

Endpoint = Callable[..., Coroutine[Any, Any, Any]]


def ops_routes(engine: AnswerSource, metrics: FrontEndMetrics, card: ModelCard) -> APIRouter:
    router = APIRouter(tags=["operations"], responses=UNAUTHORIZED)

    def get(path: str, **documented: Any) -> Callable[[Endpoint], Endpoint]:
        """Add a GET route, and the HEAD that load balancers send."""

        def add(endpoint: Endpoint) -> Endpoint:
            router.add_api_route(path, endpoint, methods=["GET"], **documented)
            router.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False, **documented)
            return endpoint

        return add

    def failed() -> Response | None:
        """The answer to probes after the engine has failed."""
        failure = engine.health.failure
        return None if failure is None else JSONResponse({"status": f"failed: {failure}"}, status_code=503)

    @get("/v1/models", response_model=Models)
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [card.json(name) for name in card.names]}

    @get("/v1/models/{name:path}", response_model=Model, responses=NO_MODEL)
    async def model(name: str) -> dict[str, Any]:
        return card.json(card.named(name))

    @get("/health", response_model=Status, responses={503: {"model": Status, "description": FAILED}})
    async def health() -> Response:
        """The process is alive, and its engine has not failed."""
        return failed() or JSONResponse({"status": "ok"})

    @get("/ready", response_model=Status, responses={503: {"model": Status, "description": NOT_READY}})
    async def ready() -> Response:
        """The server accepts requests."""
        if engine.health.ready:
            return JSONResponse({"status": "ready"})
        return failed() or JSONResponse({"status": "not ready"}, status_code=503)

    @get("/metrics", response_class=Response, responses=EXPOSITION)
    async def prometheus() -> Response:
        return Response(await metrics.scrape(), media_type=CONTENT_TYPE)

    @get("/version", response_model=Version)
    async def version() -> dict[str, str]:
        return {"version": installed_version()}

    return router
