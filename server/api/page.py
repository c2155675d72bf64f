"""The chat page, which shows the lanes at work: a few small files, which may load no others."""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter
from starlette.responses import Response

# `trusted-types 'none'`: no script can turn text into markup.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}

# Path, file in `web`, media type.
PARTS = (
    ("/", "chat.html", "text/html"),
    ("/web/chat.css", "chat.css", "text/css"),
    ("/web/chat.js", "chat.js", "text/javascript"),
    ("/web/turn.js", "turn.js", "text/javascript"),
    ("/web/canvas.js", "canvas.js", "text/javascript"),
    ("/web/stream.js", "stream.js", "text/javascript"),
    ("/web/icon.svg", "icon.svg", "image/svg+xml"),
)
PATHS = frozenset(path for path, _, _ in PARTS)


def page_routes() -> APIRouter:
    router = APIRouter(include_in_schema=False)
    for path, name, media_type in PARTS:
        _add(router, path, files("asynclane.server").joinpath("web", name).read_bytes(), media_type)
    return router


def _add(router: APIRouter, path: str, content: bytes, media_type: str) -> None:
    @router.api_route(path, methods=["GET", "HEAD"])
    async def part() -> Response:
        return Response(content, media_type=media_type, headers=HEADERS)
