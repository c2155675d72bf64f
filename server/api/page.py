"""The chat page, which shows the lanes at work: a few small files, which may load no others."""

from __future__ import annotations

from hashlib import sha256
from importlib.resources import files
from pathlib import PurePosixPath

from fastapi import APIRouter
from starlette.requests import Request
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
    "cache-control": "no-cache",  # a browser checks by the ETag whether its copy is the newest
}

TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
LANGUAGES = ("bash", "cpp", "javascript", "json", "python")  # whose code is coloured
SCRIPTS = (
    *("calls", "canvas", "chat", "chats", "markdown", "params"),
    *("race", "replay", "settings", "stream", "tokens", "turn"),
)
VENDORED = ("marked", "highlight", *(f"highlight-{language}" for language in LANGUAGES))
FILES = (
    *("chat.css", "page.css", "icon.svg"),
    *(f"{name}.js" for name in SCRIPTS),
    *(f"vendor/{name}.js" for name in VENDORED),
)
PARTS = {"/": "chat.html"} | {f"/web/{name}": name for name in FILES}  # files of `web` by their paths
PATHS = frozenset(PARTS)


def page_routes() -> APIRouter:
    router = APIRouter(include_in_schema=False)
    web = files("asynclane.server").joinpath("web")
    for path, name in PARTS.items():
        _add(router, path, web.joinpath(*name.split("/")).read_bytes(), TYPES[PurePosixPath(name).suffix])
    return router


def _add(router: APIRouter, path: str, content: bytes, media_type: str) -> None:
    etag = f'"{sha256(content).hexdigest()[:32]}"'
    headers = {**HEADERS, "etag": etag}

    @router.api_route(path, methods=["GET", "HEAD"])
    async def part(request: Request) -> Response:
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=media_type, headers=headers)
