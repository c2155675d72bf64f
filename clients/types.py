"""The replies of a server, validated on arrival. Fields that are not listed here are ignored."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, NotRequired, Self, TypedDict

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
    """Tokens of prompt and answer; `model_fields_set` has those reported. Those of the reasoning are a part of the
    answer's. Other servers have no `cost`."""

    prompt_tokens: int = Field(0, ge=0)
    completion_tokens: int = Field(0, ge=0)
    total_tokens: int = Field(0, ge=0)
    prompt_tokens_details: PromptDetails | None = None
    reasoning_tokens: int | None = Field(
        None, validation_alias=AliasPath("completion_tokens_details", "reasoning_tokens")
    )
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


class Message(TypedDict):
    """A message of a chat. `reasoning_content` and `tool_calls` are the assistant's, `tool_call_id` is a result's."""

    role: str
    content: str | Sequence[Mapping[str, str]] | None
    name: NotRequired[str]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[Sequence[Mapping[str, Any]]]
    tool_call_id: NotRequired[str]


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

    def values(self) -> dict[str, Any]:
        """Return the arguments by their names. Raises `ValueError` for those that are no JSON object, as of a call that
        was cut off."""
        found = json.loads(self.function.arguments or "{}")
        if not isinstance(found, dict):
            raise ValueError(f"the arguments are no object: {self.function.arguments}")
        return found

    def result(self, content: str) -> Message:
        """Return the message that answers the call."""
        return {"role": "tool", "tool_call_id": self.id, "content": content}


def _calls(given: object) -> object:
    return given or ()


class Gap(Loose):
    """A gap of a template, filled."""

    text: str = ""
    tokens: int = 0


class OptionProbability(Reply):
    """The probability of one of the texts from which an answer was chosen."""

    choice: str
    probability: float


class TokenScore(Reply):
    """The log-probability of a token at the step that committed it, and those of the likeliest, by their texts, in
    `others`. The first token of a prompt has none. Other servers have no `step`."""

    token: str
    logprob: float | None = None
    step: int | None = None
    others: dict[str, float] = Field(default_factory=dict)


class RankedToken(Reply):
    """One of the likeliest tokens at a place of the prompt, or the token that is there, of any rank from 1 on."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


PromptScores = tuple[dict[str, RankedToken] | None, ...]  # by token id; the first token has none


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
    choice_probabilities: tuple[OptionProbability, ...] = ()  # of `guided_choice`, with log-probabilities
    prompt_logprobs: PromptScores = ()  # of completions

    @property
    def scores(self) -> list[TokenScore]:
        """The log-probabilities, in either endpoint's form."""
        given = self.logprobs or {}
        if "tokens" not in given:
            chats = given.get("content") or ()
            return [TokenScore(**one, others=_likeliest(one.get("top_logprobs") or ())) for one in chats]
        tokens = given["tokens"]
        names = ("token_logprobs", "steps", "top_logprobs")
        columns = [given.get(name) or [None] * len(tokens) for name in names]
        rows = zip(tokens, *columns, strict=True)
        return [TokenScore(token=t, logprob=logprob, step=step, others=top or {}) for t, logprob, step, top in rows]

    @property
    def message(self) -> Message:
        """The assistant's message, to be sent back before the next question or the results of its calls."""
        message: Message = {"role": "assistant", "content": self.text}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["content"] = self.text or None
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": call.function.model_dump()} for call in self.tool_calls
            ]
        return message


def _likeliest(ranked: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for one in ranked:  # the likeliest first; tokens of a part of a character may have the same text
        found.setdefault(one["token"], one["logprob"])
    return found


class Answer(Loose):
    id: str = ""
    model: str = ""
    choices: list[Choice] = Field(min_length=1)
    usage: Usage | None = None
    prompt_logprobs: PromptScores = ()  # of chats

    @property
    def text(self) -> str:
        """The text of the first choice."""
        return self.choices[0].text

    @property
    def message(self) -> Message:
        """The assistant's message of the first choice."""
        return self.choices[0].message

    @classmethod
    def of(cls, deltas: Iterable[Delta], usage: Usage | None = None) -> Self:
        """Return the answer that the deltas of a stream add up to. Raises `ValueError` if there are none."""
        found: dict[int, list[Delta]] = {}
        for delta in deltas:
            found.setdefault(delta.index, []).append(delta)
        usage = usage or getattr(deltas, "usage", None)  # a stream has it once it was read
        return cls(choices=[_added_up(found[index]) for index in sorted(found)], usage=usage)


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


def _added_up(deltas: Sequence[Delta]) -> Choice:
    """Return the choice that its deltas add up to."""
    calls: dict[int, list[ToolCall]] = {}
    for call in (call for delta in deltas for call in delta.tool_calls):
        calls.setdefault(call.index, []).append(call)
    said = [delta for delta in deltas if delta.diffusing][-1:] or deltas  # each of them has all before it
    return Choice(
        index=deltas[0].index,
        text="".join(delta.text for delta in said),
        reasoning="".join(delta.reasoning for delta in said),
        tool_calls=tuple(_whole_call(calls[index]) for index in sorted(calls)),
        finish_reason=next((delta.finish_reason for delta in deltas if delta.finish_reason), None),
        logprobs=_joined([delta.logprobs for delta in deltas if delta.logprobs]),
        choice_probabilities=next((d.choice_probabilities for d in deltas if d.choice_probabilities), ()),
        gaps=deltas[-1].gaps,
    )


def _whole_call(pieces: Sequence[ToolCall]) -> ToolCall:
    name, arguments = ("".join(getattr(piece.function, part) for piece in pieces) for part in ("name", "arguments"))
    named = CalledFunction(name=name, arguments=arguments)
    return ToolCall(index=pieces[0].index, id=next((piece.id for piece in pieces if piece.id), ""), function=named)


def _joined(scores: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the log-probabilities of a stream as those of a whole answer: each list is joined."""
    whole: dict[str, Any] = {}
    for name, values in (item for one in scores for item in one.items()):
        whole[name] = [*whole[name], *values] if isinstance(values, list) and name in whole else values
    return whole or None


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
