"""Tells operators and tools what the server serves, whether it accepts work, and how it fares."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from ..engine.messages import AnswerSource
from ..errors import UnknownModel
from ..metrics import CONTENT_TYPE, Metrics
from ..schema.openapi import (
    EXPOSITION,
    NO_MODEL,
    NOT_READY,
    UNAUTHORIZED,
    Model,
    Models,
    Status,
    Version,
)
from ..settings import installed_version


@dataclass(frozen=True, slots=True)
class ModelCard:
    """The model as clients see it. `decoders` maps names to their knobs' defaults; `created` is Unix time."""

    id: str
    max_model_len: int
    decoders: Mapping[str, Mapping[str, object]]
    default_decoder: str
    created: int = 0

    def check_name(self, name: str) -> None:
        if name != self.id:
            raise UnknownModel(name, self.id)

    def shape(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "model",
            "created": self.created,
            "owned_by": "asynclane",
            "max_model_len": self.max_model_len,
            "default_decoder": self.default_decoder,
            "decoders": {name: dict(defaults) for name, defaults in self.decoders.items()},
        }


def ops_routes(engine: AnswerSource, metrics: Metrics, card: ModelCard) -> APIRouter:
    router = APIRouter(tags=["operations"], responses=UNAUTHORIZED)

    @_get(router, "/v1/models", response_model=Models)
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [card.shape()]}

    @_get(router, "/v1/models/{name:path}", response_model=Model, responses=NO_MODEL)
    async def model(name: str) -> dict[str, Any]:
        card.check_name(name)
        return card.shape()

    @_get(router, "/health", response_model=Status)
    async def health() -> dict[str, str]:
        """The process lives."""
        return {"status": "ok"}

    @_get(router, "/ready", response_model=Status, responses={503: {"model": Status, "description": NOT_READY}})
    async def ready() -> Response:
        """Work is accepted."""
        if engine.health.ready:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "not ready"}, status_code=503)

    @_get(router, "/metrics", response_class=Response, responses=EXPOSITION)
    async def prometheus() -> Response:
        return Response(metrics.exposition(), media_type=CONTENT_TYPE)

    @_get(router, "/version", response_model=Version)
    async def version() -> dict[str, str]:
        return {"version": installed_version()}

    return router


Endpoint = Callable[..., Coroutine[Any, Any, Any]]


def _get(router: APIRouter, path: str, **documented: Any) -> Callable[[Endpoint], Endpoint]:
    """A GET, and the HEAD beside it, which load balancers send."""

    def add(endpoint: Endpoint) -> Endpoint:
        router.add_api_route(path, endpoint, methods=["GET"], **documented)
        router.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False, **documented)
        return endpoint

    return add
