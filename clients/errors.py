"""What can go wrong between a client and its server, so that callers can tell whose turn it is to act.

ClientError
|-- ConnectionFailed   no server there, or it went away
|-- TimedOut           a limit of the client's own `timeout` has passed
|-- StatusError        the server refused: `status`, `param`, `code` and `retry_after_s` say why and what now
|-- StreamError        a stream broke off, or the server failed in the middle of it
`-- UnexpectedReply    an answer that is not of this API: another kind of server, or a proxy
"""

from __future__ import annotations


class ClientError(Exception):
    """Its text is one line for a person."""


class ConnectionFailed(ClientError):
    pass


class TimedOut(ClientError):
    pass


class StatusError(ClientError):
    """`request_id` is what the server's log calls the request."""

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
