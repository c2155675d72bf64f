"""Errors of `/v1/messages` in Anthropic's shape, whose messages have Anthropic's names of parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

PATHS = ("/v1/messages", "/v1/messages/count_tokens")  # by the end of the path
# Anthropic's type, by HTTP status.
TYPES: Mapping[int, str] = {
    401: "authentication_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}
OTHERS = "invalid_request_error"
FORMAT = "response_format.json_schema.schema"
# Such requests are translated to chats. Where a message begins with the name that a chat has for a parameter, it gets
# Anthropic's.
NAMES = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"tools\.(\d+)\.function\.parameters", r"tools.\1.input_schema"),
        (r"tools\.(\d+)\.function\.name", r"tools.\1.name"),
        (r"tool_choice\.function\.name", "tool_choice.name"),
        (r"response_format(?=: (?!unknown)| is not for )", "output_config.format"),
    )
)


def concerns(path: str) -> bool:
    """True for a request whose errors have this shape."""
    return path.rstrip("/").endswith(PATHS)


def message_error(status: int, message: str, request_id: str | None) -> dict[str, Any]:
    error = {"type": TYPES.get(status, OTHERS), "message": renamed(message)}
    return {"type": "error", "error": error, "request_id": request_id}


def renamed(text: str) -> str:
    """A message, or a parameter, with Anthropic's name where it begins with that of a chat."""
    text = text.replace(FORMAT, "output_config.format.schema")  # errors name it beside another parameter, too
    for pattern, name in NAMES:
        if found := pattern.match(text):
            return found.expand(name) + text[found.end() :]
    return text
