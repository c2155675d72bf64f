"""What a server sends, checked where it enters, so that the rest of the client handles no loose JSON."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import AliasChoices, AliasPath, BaseModel, BeforeValidator, ConfigDict, Field, model_validator


class Reply(BaseModel):
    """Fields that a server has beside these are passed over."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)


class Loose(Reply):
    """One whose fields other servers leave out, or send as null, which says no more: the default holds."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, fields: object) -> object:
        return {k: v for k, v in fields.items() if v is not None} if isinstance(fields, dict) else fields


class Cost(Reply):
    """What an answer took of an asynclane server: its model calls, positions computed, and lanes."""

    forwards: int
    computed_tokens: int
    lanes: int
    forks: int
    refreshes: int


def _cost(details: object) -> object:
    """Other servers put other details there."""
    known = isinstance(details, dict) and all(isinstance(details.get(name), int) for name in Cost.model_fields)
    return details if known else None


class PromptDetails(Loose):
    """Of the prompt's tokens, the server had computed so many for others."""

    cached_tokens: int | None = None


class Usage(Loose):
    """Tokens of prompt and answer; `model_fields_set` has those that the server told. `cost` is None where the server
    is another one."""

    prompt_tokens: int = Field(0, ge=0)
    completion_tokens: int = Field(0, ge=0)
    total_tokens: int = Field(0, ge=0)
    prompt_tokens_details: PromptDetails | None = None
    cost: Annotated[Cost | None, BeforeValidator(_cost)] = Field(None, alias="completion_tokens_details")


class Lane(Reply):
    """Positions `[start, end)` of the answer as a step found them. `tokens` are their texts behind the step, None
    where one is still open; `fate` is live, forked, finished or cancelled."""

    id: int
    parent: int | None
    role: str
    start: int
    end: int
    fate: str
    tokens: list[str | None]


class Commit(Reply):
    position: int
    text: str


class LaneEvent(Reply):
    """One step of one choice. Positions count from the answer's start; `computed` is `[start, end)`, and the prompt
    is below 0. A commit outside of all lanes is a draft."""

    step: int
    computed: tuple[int, int]
    refresh: bool
    lanes: list[Lane]
    commits: list[Commit]


def _text(content: object) -> object:
    """Content is a text, or a list of parts, of which those that are text count."""
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return "" if content is None else content


Content = Annotated[str, BeforeValidator(_text)]


class Choice(Loose):
    """One answer, or in a stream a part of one: both endpoints' shapes read as the same.

    `reasoning` is what other servers send of a model's thoughts before its text. `logprobs` is as the server wrote it.
    """

    index: int = 0
    text: Content = Field(
        "",
        validation_alias=AliasChoices("text", AliasPath("message", "content"), AliasPath("delta", "content")),
    )
    reasoning: Content = Field(
        "",
        validation_alias=AliasChoices(
            *(AliasPath(part, name) for part in ("message", "delta") for name in ("reasoning_content", "reasoning"))
        ),
    )
    finish_reason: str | None = None
    logprobs: dict[str, Any] | None = None


class Answer(Loose):
    """A whole response; `text` is that of its first choice."""

    id: str = ""
    model: str = ""
    choices: list[Choice] = Field(min_length=1)
    usage: Usage | None = None

    @property
    def text(self) -> str:
        return self.choices[0].text


class Fault(Loose):
    message: Annotated[str, BeforeValidator(lambda said: said if isinstance(said, str) else json.dumps(said))] = ""
    param: Annotated[str | None, BeforeValidator(str)] = None
    code: Annotated[str | None, BeforeValidator(str)] = None


class Told(Reply):
    """Any JSON object, and what it says went wrong: `error` as an object or a text, vLLM's `message` beside a `code`,
    FastAPI's `detail`."""

    error: Any = None
    detail: Any = None
    message: Any = None
    param: Any = None
    code: Any = None

    @property
    def fault(self) -> Fault | None:
        said = next((said for said in (self.error, self.detail, self.message) if said is not None), None)
        if said is None:
            return None
        return Fault.model_validate(
            said if isinstance(said, dict) else {"message": said, "param": self.param, "code": self.code}
        )


class Chunk(Told):
    """One event of a stream. It has `choices`, if only null ones, or `usage`: else it is another thing."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    lanes: LaneEvent | None = None

    @property
    def known(self) -> bool:
        return not self.model_fields_set.isdisjoint(("choices", "usage"))


class Delta(Choice):
    """Text that has been added to a choice; `finish_reason` is set on its last one.

    Where lanes were asked for, each step's are in a delta of their own, without text.
    """

    lanes: LaneEvent | None = None


class Model(Loose):
    """`decoders` maps names to the defaults of their knobs. Other servers tell only `id`."""

    id: str
    max_model_len: int | None = None
    default_decoder: str | None = None
    decoders: dict[str, dict[str, Any]] = Field(default_factory=dict)


class ModelList(Reply):
    data: list[Model] = Field(min_length=1)


class Tokens(Reply):
    """A text in tokens; `token_strs` only if asked for."""

    count: int
    tokens: list[int]
    max_model_len: int | None = None
    token_strs: list[str] | None = None


class Text(Reply):
    """Tokens as text."""

    prompt: str
