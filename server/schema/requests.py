"""The parameters of both completion endpoints. Each is honoured or refused, never ignored."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    PlainValidator,
    WithJsonSchema,
    create_model,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from ...scheduler import ALL_DECODERS, ALL_PARAMS, MOST_RANKS, Choice, Range
from ..engine.messages import AnswerOptions, GivenTokens, Grammar
from ..errors import InvalidValue, shown
from ..http.body import Body, Strict, refused
from ..structured.grammar import ANY_OBJECT, Wanted
from . import limits
from .formats import Option, Options, Regex, ResponseFormat, Schema, StructuredOutputs
from .unsupported import UNSUPPORTED

INT32, INT64 = 2**31, 2**63
BAN = -100  # a bias that bans, as OpenAI promises of it
STRONG = -10_000.0  # a bias that no logit outweighs


class StreamOptions(Strict):
    unsupported = UNSUPPORTED["stream_options"]

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_lanes: bool | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.continuous_usage_stats and not self.include_usage:
            raise refused("continuous_usage_stats", "only with include_usage: true")
        return self


def _scalar(value: object) -> object:
    if isinstance(value, str) and len(value) > limits.NAME_CHARS:
        raise refused(None, f"has no value of more than {limits.NAME_CHARS} characters")
    if isinstance(value, int) and not -INT64 <= value < INT64:  # a message to the engine cannot hold it
        raise refused(None, f"has no value of more than 64 bits, but {shown(value)} was given")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise refused(None, f"must be a number, a string, true or false, not {shown(value)}")


def _param_schema(kind: Range | Choice) -> dict[str, Any]:
    if isinstance(kind, Choice):
        return {"enum": [None, *kind.values]}
    number = {"type": "integer" if kind.whole else "number", "minimum": kind.low, "maximum": kind.high}
    return {"anyOf": [number, {"enum": [None, *kind.words]}]}


class _ScalarFields(Strict):
    """Fields of any scalar type: the engine checks which decoder has which parameter, and its range. The JSON Schema
    has the ranges."""

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        found = handler(schema)
        properties = handler.resolve_ref_schema(found)["properties"]
        properties |= {name: _param_schema(kind) for name, kind in ALL_PARAMS.items()}
        return found


if TYPE_CHECKING:

    class DecoderParams(_ScalarFields):
        """The parameters of all decoders; None: not given."""

else:
    _field = Annotated[object, PlainValidator(_scalar)]
    DecoderParams = create_model(
        "DecoderParams", __base__=_ScalarFields, __module__=__name__, **dict.fromkeys(ALL_PARAMS, (_field, None))
    )


def _stops(value: object) -> object:
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return value
    raise refused(None, f"must be a string or a list of up to {limits.STOPS} strings, not {shown(value)}")


def _at_most(entries: int) -> BeforeValidator:
    """Refuses an object with more entries before they are read: for lists, `fail_fast` and a length are enough."""

    def check(value: object) -> object:
        if isinstance(value, dict) and len(value) > entries:
            raise refused(None, f"must have at most {entries} entries, not {len(value)}")
        return value

    return BeforeValidator(check)


ModelName = Annotated[str, Field(max_length=limits.MODEL_CHARS)]
Hint = Annotated[str, Field(max_length=limits.HINT_CHARS)]
Stop = Annotated[str, Field(min_length=1, max_length=limits.STOP_CHARS)]
Stops = Annotated[list[Stop], Field(fail_fast=True, max_length=limits.STOPS)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Ranks = Annotated[int, Field(ge=0, le=MOST_RANKS)]
Choices = Annotated[int, Field(ge=1, le=16)]
Salt = Annotated[str, Field(min_length=1, max_length=limits.SALT_CHARS)]
Seconds = Annotated[float, Field(gt=0, le=86400)]
DecoderName = Annotated[
    Annotated[str, Field(max_length=limits.NAME_CHARS)] | None, WithJsonSchema({"enum": [None, *ALL_DECODERS]})
]
AnswerTokens = Annotated[int, Field(ge=1, lt=INT64)]
TokenName = Annotated[str, WithJsonSchema({"type": "string", "pattern": "^(0|[1-9][0-9]{0,8})$"})]
Biases = Annotated[
    dict[TokenName, Annotated[float, Field(ge=BAN, le=100)]], Field(max_length=limits.BIASES), _at_most(limits.BIASES)
]
TokenId = Annotated[int, Field(ge=0, lt=INT32)]
TokenIds = Annotated[list[TokenId], Field(fail_fast=True, max_length=limits.BIASES)]
Metadata = Annotated[
    dict[
        Annotated[str, Field(max_length=limits.METADATA_NAME_CHARS)],
        Annotated[str, Field(max_length=limits.METADATA_TEXT_CHARS)],
    ],
    Field(max_length=limits.METADATA),
    _at_most(limits.METADATA),
]


class GenerationRequest(DecoderParams, Body):
    """The parameters of both endpoints: OpenAI's, vLLM's, and ours for the decoder."""

    model: ModelName | None = None
    max_tokens: AnswerTokens | None = None
    n: Choices | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    diffusing: bool | None = None
    cache_salt: Salt | None = None
    timeout: Seconds | None = None
    # These change nothing.
    user: Hint | None = None
    metadata: Metadata | None = None
    store: bool | None = None
    prompt_cache_key: Hint | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    safety_identifier: Hint | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    decoder: DecoderName = None
    # How tokens are drawn, and where the answer stops.
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=INT32)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-INT64, lt=INT64)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=10)] | None = None
    logit_bias: Biases | None = None
    stop: Annotated[Stops, BeforeValidator(_stops, json_schema_input_type=Stop | Stops | None)] = Field(
        default_factory=list
    )
    include_stop_str_in_output: bool | None = None
    stop_token_ids: TokenIds | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Field(ge=0, lt=INT64)] | None = None
    # The format of the answer's text: one of these at most.
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: Regex | None = None
    guided_choice: Options | None = None
    prompt_logprobs: Ranks | None = None
    bad_words: Annotated[list[Option], Field(fail_fast=True, max_length=limits.CHOICES)] | None = None
    allowed_token_ids: Annotated[list[TokenId], Field(fail_fast=True, max_length=limits.ALLOWED)] | None = None

    @classmethod
    def offers(cls) -> str:
        """OpenAI's parameters are in every manual; ours are not."""
        return f"/openapi.json has all; the decoders' are {', '.join(DecoderParams.model_fields)}"

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        formats = list(self._formats())
        if len(formats) > 1:
            raise refused(formats[1].param, f"not together with {formats[0].param}: give one")
        for name in self.logit_bias or {}:
            if not (name.isascii() and name.isdigit() and len(name) < 10 and str(int(name)) == name):
                raise refused(f"logit_bias.{name}", f"names of logit_bias are token ids, not {shown(name)}")
        if self.min_tokens and self.stop:
            raise refused("min_tokens", "not together with stop: it bans end tokens and stop_token_ids alone")
        for param, given in (("stream_options", self.stream_options is not None), ("diffusing", self.diffusing)):
            if given and not self.stream:
                raise refused(param, "only with stream: true")
        if self.diffusing and self.shows_scores:
            raise refused("logprobs", "not together with diffusing, whose text may change until it is whole")
        if self.prompt_logprobs is not None and self.stream:
            raise refused("prompt_logprobs", "cannot be streamed: leave out one of them")
        for param, value in (("min_tokens", self.min_tokens), ("ignore_eos", self.ignore_eos)):
            if formats and value and not formats[0].free:
                raise refused(param, f"not together with {formats[0].param}, which says where an answer may end")
        allowed, stops = set(self.allowed_token_ids or ()), set(self.stop_token_ids or ())
        if self.min_tokens and allowed and allowed <= stops:
            raise refused("allowed_token_ids", "all are stop_token_ids, which min_tokens bans: allow another one")
        return self

    @cached_property
    def wanted(self) -> Wanted | None:
        """The format that the answer's text must have."""
        return next(self._formats(), None)

    def _formats(self) -> Iterator[Wanted]:
        outputs = self.structured_outputs
        if self.response_format is not None and self.response_format.wanted is not None:
            yield self.response_format.wanted
        if outputs is not None:
            yield from _texts("structured_outputs.", outputs.schema_text, outputs.regex, outputs.choice)
        yield from _texts("guided_", self.guided_json, self.guided_regex, self.guided_choice)
        if outputs is not None and outputs.json_object:
            yield Wanted("structured_outputs.json_object", schema=ANY_OBJECT)
        if self.bad_words:
            yield Wanted("bad_words", without=tuple(self.bad_words))
        if self.allowed_token_ids:
            yield Wanted("allowed_token_ids", tokens=tuple(self.allowed_token_ids))

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
        """The number of choices of a prompt in the response."""
        return self.n or 1

    @property
    def choices(self) -> int:
        """The number of choices of a prompt that are computed."""
        return self.kept

    @property
    def tries_lengths(self) -> bool:
        """True if several lengths of each answer are tried."""
        return False

    @property
    def ranks(self) -> int | None:
        """The number of likeliest tokens to report at each position; None: no log-probabilities at all."""
        return None

    @property
    def ranks_param(self) -> str:
        """The parameter to name where log-probabilities are refused."""
        return "logprobs"

    @property
    def shows_scores(self) -> bool:
        return self.ranks is not None

    @property
    def candidate_texts(self) -> tuple[str, ...]:
        """The texts of which the answer is one, if their probabilities are requested, by logprobs."""
        wanted = self.wanted if self.shows_scores else None
        return () if wanted is None else wanted.choice

    def check_candidates(self) -> None:
        """Raises `InvalidValue` for two equal options whose probabilities are requested."""
        found = set[str]()
        for text in self.candidate_texts:
            if text in found and self.wanted is not None:
                reason = f"two options are {shown(text)}: with logprobs each has a probability of its own"
                raise InvalidValue(self.wanted.param, f"{self.wanted.param}: {reason}")
            found.add(text)

    @property
    def streaming(self) -> StreamOptions:
        return self.stream_options or StreamOptions()

    @property
    def named_tokens(self) -> dict[str, int]:
        """Every token id in the body, by the parameter to name if there is no such token."""
        biased = {f"logit_bias.{name}": int(name) for name in self.logit_bias or {}}
        listed = {"stop_token_ids": self.stop_token_ids, "allowed_token_ids": self.allowed_token_ids}
        return biased | {f"{name}.{at}": token for name, ids in listed.items() for at, token in enumerate(ids or ())}

    def draw_seed(self) -> int:
        """The seed of a prompt's first choice: the one given, else a new one for each request."""
        if self.seed is not None:
            return self.seed
        return secrets.randbelow(INT64) if self.temperature else 0

    def options(
        self,
        max_tokens: int,
        seed: int,
        share_group: str | None = None,
        grammar: Grammar | None = None,
        suffix: tuple[int, ...] = (),
        template: tuple[tuple[int, tuple[int, ...]], ...] = (),
    ) -> AnswerOptions:
        """`max_tokens` are those to write. No text of a `template` comes after an end token."""
        params = {name: getattr(self, name) for name in DecoderParams.model_fields}
        canvas = max_tokens + sum(len(ids) for _, ids in template)
        endless = 0 if not template else canvas if suffix else canvas - template[-1][0]
        return AnswerOptions(
            max_tokens=canvas,
            temperature=self.temperature or 0.0,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=max(0, self.top_k or 0),
            min_p=self.min_p or 0.0,
            seed=seed % INT64,
            stop=tuple(self.stop),
            include_stop=bool(self.include_stop_str_in_output),
            stop_ids=tuple(self.stop_token_ids or ()),
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            repetition_penalty=self.repetition_penalty or 1.0,
            # A ban does not break the format: where nothing else may come, the token comes all the same.
            logit_bias=self._biases(ban=-math.inf if grammar is None else STRONG),
            ignore_end=bool(self.ignore_eos),
            min_tokens=self.min_tokens or endless,
            grammar=grammar,
            ranks=self.ranks,
            ranks_param=self.ranks_param,
            share_group=share_group,
            suffix=suffix,
            template=template,
            cache_salt=self.cache_salt or "",
            decoder=self.decoder,
            params=tuple((name, value) for name, value in params.items() if value is not None),
            watch=bool(self.streaming.include_lanes),
            diffusing=bool(self.diffusing),
        )

    def scoring_options(
        self, given: GivenTokens, ranks: int, bundle: str | None = None, timeout_s: float | None = None
    ) -> AnswerOptions:
        """The options that score tokens `given` beside an answer: at temperature 1, with `logit_bias`."""
        return AnswerOptions(
            max_tokens=max(1, *given.lengths),
            logit_bias=self._biases(ban=-math.inf),
            ranks=ranks,
            cache_salt=self.cache_salt or "",
            bundle=bundle,
            timeout_s=timeout_s,
            scoring=given,
        )

    def _biases(self, ban: float) -> tuple[tuple[int, float], ...]:
        """Token ids and the values to add to their logits: `ban` for a banned token."""
        given = (self.logit_bias or {}).items()
        return tuple((int(name), ban if value == BAN else value) for name, value in given if value)


def _texts(prefix: str, schema: str | None, regex: str | None, choice: list[str] | None) -> Iterator[Wanted]:
    if schema is not None:
        yield Wanted(f"{prefix}json", schema=schema)
    if regex is not None:
        yield Wanted(f"{prefix}regex", regex=regex)
    if choice is not None:
        yield Wanted(f"{prefix}choice", choice=tuple(choice))
