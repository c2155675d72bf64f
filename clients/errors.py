"""What can go wrong between a client and its server, so that callers can tell whose turn it is to act.

ClientError
|-- ConnectionFailed   no server there, or it went away
|-- StatusError        the server refused: `status`, `param`, `code` and `retry_after_s` say why and what now
`-- StreamError        a stream broke off, or the server failed in the middle of it
"""

from __future__ import annotations


class ClientError(Exception):
    """Its text is one line for a person."""


class ConnectionFailed(ClientError):
    pass


class StatusError(ClientError):
    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s


class StreamError(ClientError):
    pass
