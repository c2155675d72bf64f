"""What a server sends, checked where it enters, so that the rest of the client handles no loose JSON."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AliasChoices, AliasPath, BaseModel, BeforeValidator, ConfigDict, Field


class Reply(BaseModel):
    """Fields that a server has beside these are passed over."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)


class Cost(Reply):
    """What an answer took of an asynclane server: its model calls, positions computed, and lanes."""

    forwards: int
    computed_tokens: int
    lanes: int
    forks: int
    refreshes: int


def _cost(details: object) -> object:
    """Other servers put other details there."""
    return details if isinstance(details, dict) and "forwards" in details else None


class PromptDetails(Reply):
    """Of the prompt's tokens, the server had computed so many for others."""

    cached_tokens: int | None = None


class Usage(Reply):
    """Tokens of prompt and answer. `cost` is None where the server is another one."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
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


class Choice(Reply):
    """One answer, or in a stream a part of one: both endpoints' shapes read as the same.

    `logprobs` is as the server wrote it.
    """

    index: int = 0
    text: Annotated[str, BeforeValidator(lambda text: "" if text is None else text)] = Field(
        "",
        validation_alias=AliasChoices("text", AliasPath("message", "content"), AliasPath("delta", "content")),
    )
    finish_reason: str | None = None
    logprobs: dict[str, Any] | None = None


class Answer(Reply):
    """A whole response; `text` is that of its first choice."""

    id: str = ""
    model: str = ""
    choices: list[Choice] = Field(min_length=1)
    usage: Usage | None = None

    @property
    def text(self) -> str:
        return self.choices[0].text


class Chunk(Reply):
    """One event of a stream."""

    choices: list[Choice] = Field(default_factory=list)
    usage: Usage | None = None
    lanes: LaneEvent | None = None


class Delta(Choice):
    """Text that has been added to a choice; `finish_reason` is set on its last one.

    Where lanes were asked for, each step's are in a delta of their own, without text.
    """

    lanes: LaneEvent | None = None


class Model(Reply):
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


class Fault(Reply):
    message: str = "no reason given"
    param: str | None = None
    code: Annotated[str | None, BeforeValidator(lambda code: None if code is None else str(code))] = None


class FaultBody(Reply):
    """OpenAI's error body, in a refusal and in a stream alike."""

    error: Fault
