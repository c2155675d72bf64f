"""Reads OpenAI's request bodies strictly, so that a parameter is honoured or refused, never ignored."""

from __future__ import annotations

import secrets
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PlainValidator, WithJsonSchema, model_validator

from ...scheduler import DECODERS
from ..engine.messages import AnswerOptions, Grammar
from ..errors import shown
from .base import Body, Strict, refused
from .formats import FormatFields
from .sampling import (
    INT64,
    DecoderParams,
    Ranks,
    SamplingFields,
    StreamOptions,
)
from .unsupported import (
    CHAT_UNSUPPORTED,
    COMPLETION_UNSUPPORTED,
    MESSAGE_UNSUPPORTED,
    ONLY_CHAT,
    ONLY_COMPLETIONS,
)

MAX_CHOICES = 16
STRONG = -10_000.0  # a bias that no logit outweighs
Choices = Annotated[int, Field(ge=1, le=MAX_CHOICES)]


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


Messages = Annotated[list[Message], Field(min_length=1)]


def check_ending(messages: list[Message], continues: bool | None, opens: bool | None) -> None:
    """vLLM's two switches may say what happens anyway."""
    assistants = messages[-1].role == "assistant"
    if continues not in (None, assistants):
        raise refused("continue_final_message", "the last message is continued if and only if it is an assistant's")
    if opens not in (None, not assistants):
        raise refused("add_generation_prompt", "an answer is opened unless the last message is an assistant's")


class GenerationRequest(DecoderParams, SamplingFields, FormatFields, Body):
    """What both endpoints share: OpenAI's sampling parameters, and our decoder with its knobs."""

    model: str
    max_tokens: Annotated[int, Field(ge=1, lt=INT64)] | None = None
    n: Choices | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=1000)] | None = None
    # These three ask nothing of the server.
    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    decoder: Annotated[str | None, WithJsonSchema({"enum": [None, *DECODERS]})] = None

    @classmethod
    def offers(cls) -> str:
        """OpenAI's parameters are in every manual; ours are not."""
        return f"the decoders' knobs are {', '.join(DecoderParams.model_fields)}"

    @model_validator(mode="after")
    def _check_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise refused("stream_options", "only with stream: true")
        return self

    @model_validator(mode="after")
    def _check_end(self) -> Self:
        for param, value in (("min_tokens", self.min_tokens), ("ignore_eos", self.ignore_eos)):
            if self.wanted is not None and value:
                raise refused(param, f"not together with {self.wanted.param}, which says where an answer may end")
        return self

    @property
    def limit_param(self) -> str:
        """The parameter that bounds the answer."""
        return "max_tokens"

    @property
    def answer_limit(self) -> int | None:
        limit: int | None = getattr(self, self.limit_param)
        return limit

    @property
    def kept(self) -> int:
        """Choices of a prompt that are answered with."""
        return self.n or 1

    @property
    def choices(self) -> int:
        """Choices of a prompt that are computed."""
        return self.kept

    @property
    def tries_lengths(self) -> bool:
        """Whether several lengths of each answer are tried."""
        return False

    @property
    def ranks(self) -> int | None:
        """How many likeliest tokens are told at each place, with the log-probability of its own; None: neither."""
        return None

    @property
    def shows_scores(self) -> bool:
        return self.ranks is not None

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def include_lanes(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_lanes)

    @property
    def include_usage_so_far(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)

    def draw_seed(self) -> int:
        """The seed of a prompt's first choice: the one given, else one that differs from call to call."""
        if self.seed is not None:
            return self.seed
        return secrets.randbelow(INT64) if self.temperature else 0

    def options(
        self,
        max_tokens: int,
        seed: int,
        family: str | None = None,
        grammar: Grammar | None = None,
        suffix: tuple[int, ...] = (),
    ) -> AnswerOptions:
        params = {name: getattr(self, name) for name in DecoderParams.model_fields}
        return AnswerOptions(
            max_tokens=max_tokens,
            temperature=self.temperature or 0.0,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=max(0, self.top_k or 0),
            min_p=self.min_p or 0.0,
            seed=seed % INT64,
            stop=tuple(self.stop),
            stop_ids=tuple(self.stop_token_ids or ()),
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            # A ban does not break the format: where nothing else may come, the token comes all the same.
            logit_bias=self.biases() if grammar is None else self.biases(ban=STRONG),
            ignore_end=bool(self.ignore_eos),
            min_tokens=self.min_tokens or 0,
            grammar=grammar,
            ranks=self.ranks,
            share_group=family,
            suffix=suffix,
            cache_salt=self.cache_salt or "",
            decoder=self.decoder,
            params=tuple((name, value) for name, value in params.items() if value is not None),
            watch=self.include_lanes,
        )


class ChatCompletionRequest(GenerationRequest):
    """A final message of the assistant is continued."""

    unsupported = CHAT_UNSUPPORTED
    elsewhere = ONLY_COMPLETIONS

    messages: Messages
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, lt=INT64)] | None = None
    logprobs: bool | None = None
    top_logprobs: Ranks | None = None

    @model_validator(mode="after")
    def _check_chat(self) -> Self:
        old, new = self.max_tokens, self.max_completion_tokens
        if old is not None and new is not None and old != new:
            raise refused("max_completion_tokens", f"max_tokens says {old}, max_completion_tokens {new}: give one")
        check_ending(self.messages, self.continue_final_message, self.add_generation_prompt)
        if self.top_logprobs and not self.logprobs:
            raise refused("top_logprobs", "only with logprobs: true")
        return self

    @property
    def ranks(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def limit_param(self) -> str:
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"


def _prompts(value: object) -> list[str | list[int]]:
    """Any of the four forms as a list of prompts. Raises for an empty one."""
    prompts: list[Any] = value if isinstance(value, list) else [value]
    if isinstance(value, list) and value and all(type(item) is int for item in value):
        prompts = [value]
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


Text = Annotated[str, Field(min_length=1)]
Id = Annotated[int, Field(ge=0)]
Ids = Annotated[list[Id], Field(min_length=1)]
Prompts = Text | Annotated[list[Text], Field(min_length=1)] | Ids | Annotated[list[Ids], Field(min_length=1)]


class CompletionRequest(GenerationRequest):
    unsupported = COMPLETION_UNSUPPORTED
    elsewhere = ONLY_CHAT

    prompt: Annotated[
        list[str | list[int]],
        PlainValidator(_prompts, json_schema_input_type=Prompts),
    ]
    logprobs: Ranks | None = None
    echo: bool | None = None
    best_of: Choices | None = None
    suffix: str | None = None

    @model_validator(mode="after")
    def _check_choices(self) -> Self:
        if self.best_of is not None and self.best_of < self.kept:
            raise refused("best_of", f"the best {self.kept} (n) cannot be chosen of {self.best_of}")
        if self.choices > self.kept and self.stream:
            raise refused(
                "best_of", "nothing can be streamed while the best is not known: leave out stream, or best_of"
            )
        if self.suffix and self.wanted is not None:
            raise refused("suffix", f"not together with {self.wanted.param}, whose answers are as long as they must be")
        if self.tries_lengths and self.stream:
            raise refused(
                "suffix", "nothing can be streamed while its best length is not known: give max_tokens, or no stream"
            )
        if self.echo and self.logprobs is not None:
            raise refused("logprobs", "not together with echo: log-probabilities of a prompt are not supported")
        return self

    @property
    def choices(self) -> int:
        return self.best_of or self.kept

    @property
    def tries_lengths(self) -> bool:
        """Whether an answer must have the right length, but nobody says which."""
        return bool(self.suffix) and self.answer_limit is None

    @property
    def ranks(self) -> int | None:
        # The best is chosen by its log-probability, shown or not.
        chosen = 0 if self.choices > self.kept or self.tries_lengths else None
        return chosen if self.logprobs is None else self.logprobs

    @property
    def shows_scores(self) -> bool:
        return self.logprobs is not None
