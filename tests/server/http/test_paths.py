"""A path may be written as whole URLs, or with a slash at its end."""

from __future__ import annotations

import pytest
from starlette.types import Receive, Scope, Send

from asynclane.server.http.paths import PlainPaths


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("http://x/path", "/path"),
        ("HTTPS://x:80/a%20b", "/a b"),
        ("http://x", "/"),
        ("/http://x/y", "/http://x/y"),
        ("/v1/models/", "/v1/models"),
        ("http://x/v1/models/", "/v1/models"),
        ("//", "/"),
    ],
)
async def test_all_forms_of_a_target_are_the_same_path(target: str, path: str) -> None:
    seen = []

    async def app(scope: Scope, _receive: Receive, _send: Send) -> None:
        seen.append(scope["path"])

    scope = {"type": "http", "raw_path": target.encode(), "path": target.replace("%20", " ")}
    await PlainPaths(app)(scope, None, None)  # type: ignore[arg-type] # it reads and sends nothing
    assert seen == [path]
