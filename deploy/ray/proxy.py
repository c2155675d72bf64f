"""Middlewares of Ray's proxies: a clear error when a replica is lost, and sessions for prompts that begin alike.

A cluster loads them with RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=asynclane.deploy.ray.proxy:middlewares.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...server.errors import EngineDown, body_for, error_response
from ...server.http.sse import event

SESSION = b"x-session-id"
PROMPTS = {
    "/v1/chat/completions": "messages",
    "/v1/completions": "prompt",
    "/v1/fim/completions": "prompt",
    "/v1/responses": "input",
}
MOST_BYTES = 2**18  # of a body whose prompt is read
KEY_CHARS = 2048
KEY_TOKENS = 512


def middlewares() -> list[Middleware]:
    return [Middleware(LostReplica), Middleware(PromptSession)]


class LostReplica:
    """Ends a response whose replica is lost: a stream with an error event, one that has not begun with HTTP 503."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = stream = complete = False

        async def watched(message: Message) -> None:
            nonlocal started, stream, complete
            if message["type"] == "http.response.start":
                started = True
                stream = Headers(raw=message["headers"]).get("content-type", "").startswith("text/event-stream")
            elif message["type"] == "http.response.body":
                complete = not message.get("more_body")
            await send(message)

        await self._app(scope, receive, watched)
        if complete or (started and not stream):
            return
        error = EngineDown("the replica that computed this answer is lost: send the request again")
        if started:
            body = event(body_for(scope, error), "error")
            await send({"type": "http.response.body", "body": body, "more_body": False})
        else:
            await error_response(error, scope)(scope, receive, send)


class PromptSession:
    """Gives a request without a session that of its prompt's beginning: all turns of a conversation have one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wanted = scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in PROMPTS
        if not wanted or SESSION in dict(scope["headers"]):
            await self._app(scope, receive, send)
            return
        messages: list[Message] = []
        body, more = b"", True
        while more and len(body) <= MOST_BYTES:
            messages.append(await receive())
            more = messages[-1].get("more_body", False)
            body += messages[-1].get("body", b"")
        begun = None if more else beginning(body, PROMPTS[scope["path"]])
        if begun is not None:
            digest = hashlib.blake2b(Headers(scope=scope).get("authorization", "").encode() + begun, digest_size=16)
            scope = {**scope, "headers": [*scope["headers"], (SESSION, digest.hexdigest().encode())]}
        messages.reverse()

        async def replayed() -> Message:
            return messages.pop() if messages else await receive()

        await self._app(scope, replayed, send)


def beginning(body: bytes, param: str) -> bytes | None:
    """The first messages of a chat, up to the user's first, or the head of a prompt; None if there is neither."""
    try:
        request: Any = json.loads(body)
        if not isinstance(request, dict):
            return None
        found = request.get(param)
    except (ValueError, RecursionError):
        return None
    if isinstance(found, str):
        return found[:KEY_CHARS].encode(errors="replace")
    if not isinstance(found, list) or not found:
        return None
    if isinstance(found[0], dict):
        roles = [one.get("role") if isinstance(one, dict) else None for one in found]
        found = found[: roles.index("user") + 1 if "user" in roles else 1]
    return json.dumps(found[:KEY_TOKENS])[: KEY_CHARS * 2].encode()
