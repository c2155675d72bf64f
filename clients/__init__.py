"""A client for any server that speaks OpenAI's API. It needs nothing of the server."""

from .client import ChatStream, Client
from .errors import ClientError, ConnectionFailed, StatusError, StreamError
from .types import ChatDelta, Message, Usage

__all__ = [
    "ChatDelta",
    "ChatStream",
    "Client",
    "ClientError",
    "ConnectionFailed",
    "Message",
    "StatusError",
    "StreamError",
    "Usage",
]
