"""The replies of a server, validated on arrival. Fields that are not listed here are ignored."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import AliasChoices, AliasPath, BaseModel, BeforeValidator, ConfigDict, Field, model_validator


class Reply(BaseModel):
    model_config = ConfigDict(frozen=True, populate_by_name=True)


class Loose(Reply):
    """A reply in which other servers omit fields or send null: either means the default."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, fields: object) -> object:
        return {k: v for k, v in fields.items() if v is not None} if isinstance(fields, dict) else fields


class Cost(Reply):
    """The work of an asynclane server for an answer: forwards, computed positions, and lanes."""

    forwards: int
    computed_tokens: int
    lanes: int
    forks: int
    refreshes: int


def _cost(details: object) -> object:
    """Return details that are a `Cost`; other servers send other details."""
    known = isinstance(details, dict) and all(isinstance(details.get(name), int) for name in Cost.model_fields)
    return details if known else None


class PromptDetails(Loose):
    cached_tokens: int | None = None  # of the prompt, from the server's prefix cache


class Usage(Loose):
    """Tokens of prompt and answer; `model_fields_set` has those reported. Other servers have no `cost`."""

    prompt_tokens: int = Field(0, ge=0)
    completion_tokens: int = Field(0, ge=0)
    total_tokens: int = Field(0, ge=0)
    prompt_tokens_details: PromptDetails | None = None
    cost: Annotated[Cost | None, BeforeValidator(_cost)] = Field(None, alias="completion_tokens_details")


class Lane(Reply):
    """Positions `[start, end)` of the answer before a step; `tokens` are their texts after it, None for an open one."""

    id: int
    parent: int | None
    role: str
    start: int
    end: int
    fate: str  # live, forked, finished or cancelled
    tokens: list[str | None]


class Commit(Reply):
    position: int
    text: str


class LaneEvent(Reply):
    """One step of one choice. Positions count from the start of the answer, so the prompt is below 0; `computed` is
    `[start, end)`. A commit outside all lanes is a draft."""

    step: int
    computed: tuple[int, int]
    refresh: bool
    lanes: list[Lane]
    commits: list[Commit]


def _text(content: object) -> object:
    """Join the parts of a content that are text."""
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return "" if content is None else content


Content = Annotated[str, BeforeValidator(_text)]
PLACES = [AliasPath(part, name) for part in ("message", "delta") for name in ("reasoning_content", "reasoning")]


class CalledFunction(Loose):
    """`arguments` is JSON text."""

    name: str = ""
    arguments: str = ""


class ToolCall(Loose):
    """A call of a tool. In a stream the first delta of the call at `index` has its `id` and name, later ones have
    further pieces of its arguments."""

    index: int = 0
    id: str = ""
    function: CalledFunction = CalledFunction()


def _calls(given: object) -> object:
    return given or ()


class Gap(Loose):
    """A gap of a template, filled."""

    text: str = ""
    tokens: int = 0


class Choice(Loose):
    """One answer, or a part of one in a stream. Other servers send a model's thoughts as `reasoning`."""

    index: int = 0
    text: Content = Field(
        "", validation_alias=AliasChoices("text", AliasPath("message", "content"), AliasPath("delta", "content"))
    )
    reasoning: Content = Field("", validation_alias=AliasChoices(*PLACES))
    tool_calls: Annotated[tuple[ToolCall, ...], BeforeValidator(_calls)] = Field(
        (),
        validation_alias=AliasChoices(AliasPath("message", "tool_calls"), AliasPath("delta", "tool_calls")),
    )
    finish_reason: str | None = None
    logprobs: dict[str, Any] | None = None  # as the server wrote it
    gaps: tuple[Gap, ...] = ()


class Answer(Loose):
    id: str = ""
    model: str = ""
    choices: list[Choice] = Field(min_length=1)
    usage: Usage | None = None

    @property
    def text(self) -> str:
        """The text of the first choice."""
        return self.choices[0].text


class Fault(Loose):
    message: Annotated[str, BeforeValidator(lambda given: given if isinstance(given, str) else json.dumps(given))] = ""
    param: Annotated[str | None, BeforeValidator(str)] = None
    code: Annotated[str | None, BeforeValidator(str)] = None


class ErrorBody(Reply):
    """Any JSON object, and the error in it: `error` as an object or a text, vLLM's `message` beside a `code`, or
    FastAPI's `detail`."""

    error: Any = None
    detail: Any = None
    message: Any = None
    param: Any = None
    code: Any = None

    @property
    def fault(self) -> Fault | None:
        given = next((given for given in (self.error, self.detail, self.message) if given is not None), None)
        if given is None or isinstance(given, dict):
            return None if given is None else Fault.model_validate(given)
        return Fault.model_validate({"message": given, "param": self.param, "code": self.code})


class Chunk(ErrorBody):
    """One event of a stream. It is `known` if it has `choices` or `usage`, even null ones."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    lanes: LaneEvent | None = None
    diffusing: bool | None = None

    @property
    def known(self) -> bool:
        return not self.model_fields_set.isdisjoint(("choices", "usage"))


class Delta(Choice):
    """Text or parts of calls that were added to a choice; its last delta has the `finish_reason`. Requested lanes come
    in deltas of their own, without text. Of a `diffusing` answer the text is all there is so far."""

    lanes: LaneEvent | None = None
    diffusing: bool = False


class Model(Loose):
    """`decoders` maps names to the defaults of their parameters. Other servers send only `id`."""

    id: str
    max_model_len: int | None = None
    default_decoder: str | None = None
    decoders: dict[str, dict[str, Any]] = Field(default_factory=dict)


class ModelList(Reply):
    data: list[Model] = Field(min_length=1)


class Tokens(Reply):
    """A text in tokens; `token_strs` only on request."""

    count: int
    tokens: list[int]
    max_model_len: int | None = None
    token_strs: list[str] | None = None


class Text(Reply):
    prompt: str
