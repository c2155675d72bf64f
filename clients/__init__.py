"""A client for any server with OpenAI's API. It needs nothing of the server package."""

from .async_client import AsyncClient, AsyncStream
from .calls import Message
from .client import Client, Stream
from .core import NEVER, Retry
from .errors import ClientError, Closed, ConnectionFailed, StatusError, StreamError, TimedOut, UnexpectedReply
from .types import Answer, Choice, Commit, Cost, Delta, Lane, LaneEvent, Model, Tokens, ToolCall, Usage

__all__ = [
    "NEVER", "Answer", "AsyncClient", "AsyncStream", "Choice", "Client", "ClientError", "Closed", "Commit",
    "ConnectionFailed", "Cost", "Delta", "Lane", "LaneEvent", "Message", "Model", "Retry", "StatusError",
    "Stream", "StreamError", "TimedOut", "Tokens", "ToolCall", "UnexpectedReply", "Usage",
]  # fmt: skip
