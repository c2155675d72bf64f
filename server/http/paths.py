"""The forms in which clients write the path of a request."""

from __future__ import annotations

import re
from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send

ABSOLUTE = re.compile(rb"https?://[^/]*(/.*)?", re.IGNORECASE | re.DOTALL)


class PlainPaths:
    """Serves `/path/` as `/path`, without a redirect, which would lose the prefix that a proxy has cut off; and
    `GET http://host/path`, as clients write to what they think is a proxy."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            if found := ABSOLUTE.fullmatch(scope.get("raw_path") or b""):
                scope["raw_path"] = found[1] or b"/"
                scope["path"] = unquote(scope["raw_path"].decode("ascii"))
            scope["path"] = scope["path"].rstrip("/") or "/"
        await self._app(scope, receive, send)
