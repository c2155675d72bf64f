"""A client for any server with OpenAI's API. It needs nothing of the server package."""

from .async_client import AsyncClient, AsyncStream
from .calls import Function, NamedTool, Tool
from .client import Client, Stream
from .core import NEVER, Retry
from .errors import ClientError, Closed, ConnectionFailed, StatusError, StreamError, TimedOut, UnexpectedReply
from .types import (
    Answer,
    Choice,
    Commit,
    Cost,
    Delta,
    Lane,
    LaneEvent,
    Message,
    Model,
    OptionProbability,
    Tokens,
    TokenScore,
    ToolCall,
    Usage,
)

__all__ = [
    "NEVER", "Answer", "AsyncClient", "AsyncStream", "Choice", "Client", "ClientError", "Closed", "Commit",
    "ConnectionFailed", "Cost", "Delta", "Function", "Lane", "LaneEvent", "Message", "Model", "NamedTool",
    "OptionProbability", "Retry", "StatusError", "Stream", "StreamError", "TimedOut", "TokenScore", "Tokens", "Tool",
    "ToolCall", "UnexpectedReply", "Usage",
]  # fmt: skip
