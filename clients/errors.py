"""The errors of a client, by who has to act.

ClientError
|-- ConnectionFailed   no server there, or it went away
|-- TimedOut           a limit of the client's own `timeout` has passed
|-- StatusError        the server refused: `status`, `param`, `code` and `retry_after_s` say why and what to do
|-- StreamError        a stream broke off, or the server failed in the middle of it
|-- UnexpectedReply    not a reply of this API: another kind of server, or a proxy
`-- Closed             a client or a stream was used after its `close`

A URL, a key, a limit or a body that cannot be sent is a `ValueError`.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

SHOWN_CHARS = 1000
# A terminal may show a server's text: characters that move the cursor or change colours are removed.
CONTROLS = dict.fromkeys((*range(32), *range(127, 160), 8232, 8233), " ")


def one_line(text: str) -> str:
    """Return a server's text as one line of limited length without control characters."""
    line = " ".join(text.translate(CONTROLS).split())
    return line if len(line) <= SHOWN_CHARS else f"{line[:SHOWN_CHARS]}..."


class ClientError(Exception):
    """The base of all errors. Its text is one line for a person."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class ConnectionFailed(ClientError): ...


class TimedOut(ClientError): ...


@dataclass(eq=False, repr=False)
class StatusError(ClientError):
    """`request_id` identifies the request in the server's log; `message` is as the server wrote it."""

    status: int
    message: str
    _: KW_ONLY
    param: str | None = None
    code: str | None = None
    retry_after_s: float | None = None
    request_id: str | None = None

    def __post_init__(self) -> None:
        super().__init__(f"{self.status}: {self.message}")


class StreamError(ClientError):
    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class UnexpectedReply(ClientError): ...


class Closed(ClientError): ...
