"""Reads OpenAI's request bodies strictly, so that a parameter is honoured or refused, never ignored."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, model_validator
from pydantic_core import PydanticCustomError

from .errors import shown
from .streams import AnswerOptions
from .unsupported import MESSAGE_UNSUPPORTED, STREAM_UNSUPPORTED, UNSUPPORTED

INT64 = 2**63
MAX_CHOICES = 16


def refused(param: str | None, reason: str, code: str = "invalid_value") -> PydanticCustomError:
    """An error of ours in pydantic, for `errors.from_validation`. `param` is relative to the field."""
    return PydanticCustomError("refused", "{reason}", {"param": param, "reason": reason, "code": code})


def _same(value: object, neutral: object) -> bool:
    """Equal as JSON: 0 and 0.0 are, 0 and false are not."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


class Strict(BaseModel):
    """Unknown names are errors; so are unsupported ones, unless their value asks nothing."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral(cls, raw: object) -> object:
        if not isinstance(raw, dict):
            return raw
        for name in cls.unsupported.keys() & raw.keys():
            value, neutral = raw[name], cls.unsupported[name]
            if name == "best_of":
                neutral = (raw.get("n") or 1,)
            if value is not None and not any(_same(value, one) for one in neutral):
                reason = f"not supported yet, but {shown(value)} was given"
                raise refused(name, reason, code="unsupported_parameter")
        return {name: value for name, value in raw.items() if name not in cls.unsupported}


class TextPart(Strict):
    type: Literal["text"]
    text: str


def _parts(value: object) -> object:
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    if isinstance(value, list):
        return value
    raise refused(None, f"must be a string or a list of text parts, not {shown(value)}")


class Message(Strict):
    unsupported = MESSAGE_UNSUPPORTED

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[list[TextPart], BeforeValidator(_parts, json_schema_input_type=str | list[TextPart])]
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.tool_call_id is not None and self.role != "tool":
            raise refused("tool_call_id", "only a message with role 'tool' may have one")
        return self

    def for_template(self) -> dict[str, str]:
        """`developer` is OpenAI's newer name for `system`, which chat templates know."""
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": "".join(part.text for part in self.content)}


class StreamOptions(Strict):
    unsupported = STREAM_UNSUPPORTED

    include_usage: bool | None = None
    include_lanes: bool | None = None


def _stops(value: object) -> object:
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return value
    raise refused(None, f"must be a string or a list of up to 4 strings, not {shown(value)}")


def _scalar(value: object) -> object:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise refused(None, f"must be a number, a string, true or false, not {shown(value)}")


Stop = Annotated[str, Field(min_length=1, max_length=1000)]
Stops = Annotated[
    list[Stop],
    BeforeValidator(_stops, json_schema_input_type=str | list[str] | None),
    Field(max_length=4),
]
Knob = Annotated[object, PlainValidator(_scalar, json_schema_input_type=int | float | bool | str | None)]


class DecoderKnobs(Strict):
    """Typed loosely: the engine knows which decoder has which knob, and its range."""

    steps: Knob = None
    block_length: Knob = None
    threshold: Knob = None
    factor: Knob = None
    cache: Knob = None
    lookahead: Knob = None
    draft_threshold: Knob = None
    end_threshold: Knob = None
    later_threshold: Knob = None
    max_lanes: Knob = None
    min_fill: Knob = None
    min_steps: Knob = None
    boundary: Knob = None
    stable_steps: Knob = None
    siblings: Knob = None
    refresh_every: Knob = None
    refresh_on: Knob = None
    reuse: Knob = None
    settle: Knob = None
    early_stop: Knob = None


class GenerationRequest(DecoderKnobs):
    """What both endpoints share: OpenAI's sampling parameters, and our decoder with its knobs."""

    unsupported = UNSUPPORTED

    model: str
    max_tokens: Annotated[int, Field(ge=1, lt=INT64)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-INT64, lt=INT64)] | None = None
    stop: Stops = Field(default_factory=list)
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # These three ask nothing of the server.
    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None

    decoder: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _check_leaves(cls, raw: object) -> object:
        for path, value in _leaves(raw):
            if isinstance(value, float) and not math.isfinite(value):
                raise refused(path, f"must be a finite number, not {value!r}")
            if isinstance(value, str) and not _is_unicode(value):
                raise refused(path, "must be valid Unicode, not half a surrogate pair")
        return raw

    @model_validator(mode="after")
    def _check_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise refused("stream_options", "only with stream: true")
        return self

    @property
    def answer_limit(self) -> int | None:
        return self.max_tokens

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def include_lanes(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_lanes)

    def draw_seed(self) -> int:
        """The seed of a prompt's first choice: the one given, else one that differs from call to call."""
        if self.seed is not None:
            return self.seed
        return secrets.randbelow(INT64) if self.temperature else 0

    def options(self, max_tokens: int, seed: int) -> AnswerOptions:
        knobs = {name: getattr(self, name) for name in DecoderKnobs.model_fields}
        return AnswerOptions(
            max_tokens=max_tokens,
            temperature=self.temperature or 0.0,
            top_p=1.0 if self.top_p is None else self.top_p,
            seed=seed % INT64,
            stop=tuple(self.stop),
            decoder=self.decoder,
            knobs={name: value for name, value in knobs.items() if value is not None},
            watch=self.include_lanes,
        )


class ChatCompletionRequest(GenerationRequest):
    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1, lt=INT64)] | None = None

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        old, new = self.max_tokens, self.max_completion_tokens
        if old is not None and new is not None and old != new:
            raise refused("max_completion_tokens", f"max_tokens says {old}, max_completion_tokens {new}: give one")
        return self

    @property
    def answer_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


def _prompts(value: object) -> list[str | list[int]]:
    """Any of the four forms as a list of prompts. Raises for an empty one."""
    prompts: list[Any] = value if isinstance(value, list) else [value]
    if prompts and all(type(item) is int for item in prompts):
        prompts = [prompts]
    kinds = {_prompt_kind(prompt) for prompt in prompts}
    if kinds not in ({"text"}, {"ids"}):
        raise refused(
            None,
            f"must be text, texts, token ids or lists of them, none of it empty, not {shown(value)}",
        )
    return prompts


def _prompt_kind(prompt: object) -> str | None:
    if isinstance(prompt, str) and prompt:
        return "text"
    if isinstance(prompt, list) and prompt and all(type(item) is int for item in prompt):
        return "ids"
    return None


class CompletionRequest(GenerationRequest):
    prompt: Annotated[
        list[str | list[int]],
        PlainValidator(_prompts, json_schema_input_type=str | list[str] | list[int] | list[list[int]]),
    ]


def _leaves(raw: object) -> Iterator[tuple[str, object]]:
    """Every value in a JSON tree with its dotted path; not recursive, for bodies may nest deep."""
    stack: list[tuple[str, object]] = [("", raw)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, dict):
            yield from ((path or "a name in the body", name) for name in value)
            stack += [(f"{path}.{name}" if path else str(name), item) for name, item in value.items()]
        elif isinstance(value, list):
            # Token ids are many, and any integer is fine.
            stack += [(f"{path}.{index}", item) for index, item in enumerate(value) if type(item) is not int]
        else:
            yield path, value


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
