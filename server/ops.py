"""Tells operators and tools what the server serves, whether it accepts work, and how it fares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from .errors import UnknownModel
from .metrics import CONTENT_TYPE, Metrics
from .settings import installed_version
from .streams import AnswerSource


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
    router = APIRouter(tags=["operations"])

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [card.shape()]}

    @router.get("/v1/models/{name:path}", responses={"4XX": {"description": "No such model."}})
    async def model(name: str) -> dict[str, Any]:
        card.check_name(name)
        return card.shape()

    @router.get("/health")
    async def health() -> dict[str, str]:
        """The process lives."""
        return {"status": "ok"}

    @router.get("/ready", responses={503: {"description": "Starting or draining."}})
    async def ready() -> Response:
        """Work is accepted."""
        if engine.ready:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "not ready"}, status_code=503)

    @router.get("/metrics", response_class=Response)
    async def prometheus() -> Response:
        return Response(metrics.exposition(), media_type=CONTENT_TYPE)

    @router.get("/version")
    async def version() -> dict[str, str]:
        return {"version": installed_version()}

    return router
