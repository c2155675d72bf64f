"""What a server sends, checked where it enters, so that the rest of the client handles no loose JSON."""

from __future__ import annotations

from typing import Any, TypedDict

from pydantic import BaseModel, Field


class Message(TypedDict):
    role: str
    content: str


class Usage(BaseModel):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class ChatDelta(BaseModel):
    """Text that has been added to a choice; `finish_reason` is set on its last one.

    Where lanes were asked for, each step's are in a delta of their own, as the server wrote them.
    """

    index: int = 0
    text: str = ""
    finish_reason: str | None = None
    lanes: dict[str, Any] | None = None


class Delta(BaseModel):
    content: str | None = None


class Choice(BaseModel):
    index: int = 0
    delta: Delta = Field(default_factory=Delta)
    finish_reason: str | None = None


class Chunk(BaseModel):
    choices: list[Choice] = Field(default_factory=list)
    usage: Usage | None = None
    lanes: dict[str, Any] | None = None


class Model(BaseModel):
    id: str


class ModelList(BaseModel):
    data: list[Model] = Field(min_length=1)


class Fault(BaseModel):
    message: str = "no reason given"
    param: str | None = None
    code: str | None = None


class FaultBody(BaseModel):
    """OpenAI's error body, in a refusal and in a stream alike."""

    error: Fault
