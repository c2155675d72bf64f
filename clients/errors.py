"""What can go wrong between a client and its server, so that callers can tell whose turn it is to act.

ClientError
|-- ConnectionFailed   no server there, or it went away
|-- TimedOut           a limit of the client's own `timeout` has passed
|-- StatusError        the server refused: `status`, `param`, `code` and `retry_after_s` say why and what now
|-- StreamError        a stream broke off, or the server failed in the middle of it
|-- UnexpectedReply    an answer that is not of this API: another kind of server, or a proxy
`-- Closed             a client or a stream was used behind its `close`

What can never be sent is no matter of a server: a URL, a key, a limit or a body that is none is a `ValueError`.
"""

from __future__ import annotations

SHOWN_CHARS = 1000
# A server's text may be shown in a terminal: what would move the cursor or change colours there does not get through.
CONTROLS = dict.fromkeys((*range(32), *range(127, 160), 8232, 8233), " ")


def one_line(text: str) -> str:
    """A text of a server's in a form that can be shown anywhere: one line, not endless, without control characters."""
    line = " ".join(text.translate(CONTROLS).split())
    return line if len(line) <= SHOWN_CHARS else f"{line[:SHOWN_CHARS]}..."


class ClientError(Exception):
    """Its text is one line for a person."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class ConnectionFailed(ClientError):
    pass


class TimedOut(ClientError):
    pass


class StatusError(ClientError):
    """`request_id` is what the server's log calls the request; `message` is as the server wrote it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s
        self.request_id = request_id


class StreamError(ClientError):
    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class UnexpectedReply(ClientError):
    pass


class Closed(ClientError):
    pass
