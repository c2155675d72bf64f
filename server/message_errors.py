"""Errors of `/v1/messages` in Anthropic's shape, whose messages have Anthropic's names of parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
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
# Such requests are translated to chats. Where a message has the name of a chat's parameter, it gets Anthropic's: not in
# a value or a schema of the client's, and not where the client has sent a parameter of a chat, which is unknown here.
QUOTED = re.compile(r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""")
NAMES = tuple(
    (re.compile(rf"(?<![\w./]){pattern}(?![\w])(?!: unknown)"), name)
    for pattern, name in (
        (r"tools\.(\d+)\.function\.parameters", r"tools.\1.input_schema"),
        (r"tools\.(\d+)\.function\.name", r"tools.\1.name"),
        (r"tool_choice\.function\.name", "tool_choice.name"),
        (r"response_format\.json_schema\.schema", "output_config.format.schema"),
        (r"response_format", "output_config.format"),
        (r"reasoning_effort", "output_config.effort"),
    )
)


def concerns(path: str) -> bool:
    """True for a request whose errors have this shape."""
    return path.rstrip("/").endswith(PATHS)


def message_error(status: int, message: str, request_id: str | None) -> dict[str, Any]:
    error = {"type": TYPES.get(status, OTHERS), "message": renamed(message)}
    return {"type": "error", "error": error, "request_id": request_id}


def renamed(text: str) -> str:
    """A message, or a parameter, with Anthropic's names for those of a chat."""

    def named(part: str) -> str:
        for pattern, name in NAMES:
            part = pattern.sub(name, part)
        return part

    return outside_quotes(text, named)


def outside_quotes(text: str, change: Callable[[str], str]) -> str:
    """A message with its own words changed, and not the values of the client in it, which are quoted."""
    return "".join(part if number % 2 else change(part) for number, part in enumerate(QUOTED.split(text)))
