"""The bodies of both completion endpoints. A parameter is honoured or refused, never ignored."""

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
from .tools import AnyObject, Label, NamedTool, Tool, ToolCalls, ToolChoice, Tools
from .unsupported import CHAT, COMPLETIONS, ELSEWHERE, UNSUPPORTED, unsupported_by

INT32, INT64 = 2**31, 2**63
BAN = -100  # a bias that bans, as OpenAI promises of it
STRONG = -10_000.0  # a bias that no logit outweighs


SAMPLES = 128  # of Monte Carlo, as in LLaDA's evaluation
# Parameters of an answer, of which the likelihood of a prompt has none.
NOT_SCORED = (
    *("stream", "suffix", "decoder", "stop", "stop_token_ids", "min_tokens", "ignore_eos"),
    *("presence_penalty", "frequency_penalty", "include_stop_str_in_output"),
)
NO_ANSWER = "not together with echo and logprobs, which score the prompt and write no answer"


class TextPart(Strict):
    type: Literal["text"]
    text: str


def _parts(value: object) -> object:
    if value is None:
        return None
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    if isinstance(value, list):
        return value
    raise refused(None, f"must be a string or a list of text parts, not {shown(value)}")


Parts = Annotated[list[TextPart], Field(fail_fast=True, max_length=limits.PARTS)]
ModelName = Annotated[str, Field(max_length=limits.MODEL_CHARS)]


class Message(Strict):
    unsupported = UNSUPPORTED["messages"]

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[Parts | None, BeforeValidator(_parts, json_schema_input_type=str | Parts | None)] = None
    tool_calls: ToolCalls | None = None
    tool_call_id: Label | None = None
    reasoning_content: str | None = None  # of an earlier answer, for templates that show it
    name: Annotated[str, Field(min_length=1, max_length=limits.NAME_CHARS)] | None = None  # for templates that show it
    parsed: object = None  # of an SDK that read the answer; it changes nothing

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.tool_call_id is not None and self.role != "tool":
            raise refused("tool_call_id", "only a message with role 'tool' may have one")
        if self.role == "tool" and self.tool_call_id is None:
            raise refused("tool_call_id", "a message with role 'tool' needs that of its call", code="missing_parameter")
        for name, value in (("tool_calls", self.tool_calls), ("reasoning_content", self.reasoning_content)):
            if value and self.role != "assistant":
                raise refused(name, "only a message with role 'assistant' may have it")
        if self.parsed is not None and self.role != "assistant":
            raise refused("parsed", "only a message with role 'assistant' may have it")
        if self.content is None and not self.tool_calls and self.reasoning_content is None:
            if "content" in self.model_fields_set:
                raise refused("content", "must be a string or a list of text parts, not None")
            raise refused(
                "content", "required, unless there are tool_calls or reasoning_content", code="missing_parameter"
            )
        return self

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content or ())

    @property
    def beyond_text(self) -> bool:
        """True for a call of tools, or the result of one."""
        return bool(self.tool_calls) or self.role == "tool"

    @property
    def chars(self) -> int:
        """The characters of all texts."""
        calls = sum(len(call.id) + len(call.function.arguments) for call in self.tool_calls or ())
        return len(self.text) + len(self.reasoning_content or "") + calls

    def for_template(self) -> dict[str, Any]:
        """`developer` is OpenAI's newer name for `system`, which chat templates know."""
        role = "system" if self.role == "developer" else self.role
        calls = [call.for_template() for call in self.tool_calls or ()]
        optional = {
            "name": self.name,
            "tool_calls": calls or None,
            "tool_call_id": self.tool_call_id,
            "reasoning_content": self.reasoning_content,
        }
        given = {name: value for name, value in optional.items() if value is not None}
        return {"role": role, "content": self.text, **given}


Messages = Annotated[list[Message], Field(fail_fast=True, min_length=1, max_length=limits.MESSAGES)]


def check_messages(messages: list[Message]) -> None:
    """Refuse the result of a call that no message before it has, and calls that nothing follows."""
    called = set[str]()
    for at, message in enumerate(messages):
        called.update(call.id for call in message.tool_calls or ())
        if message.tool_call_id is not None and message.tool_call_id not in called:
            reason = f"no assistant message before it has a call {shown(message.tool_call_id)}"
            raise refused(f"messages.{at}.tool_call_id", reason)
    if messages[-1].tool_calls:
        reason = "calls in the last message cannot be continued: messages with their results must follow"
        raise refused(f"messages.{len(messages) - 1}.tool_calls", reason)


def check_ending(messages: list[Message], continues: bool | None, opens: bool | None) -> None:
    """Refuse vLLM's two switches unless they agree with the last message."""
    assistants = messages[-1].role == "assistant"
    if continues not in (None, assistants):
        raise refused("continue_final_message", "the last message is continued if and only if it is an assistant's")
    if opens not in (None, not assistants):
        raise refused("add_generation_prompt", "an answer is opened unless the last message is an assistant's")


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


TemplateVariables = Annotated[AnyObject, Field(max_length=limits.VARIABLES)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


def check_names(tools: list[Tool]) -> set[str]:
    """The names of tools, of which no two have the same."""
    names = set[str]()
    for at, tool in enumerate(tools):
        if tool.function.name in names:
            raise refused(f"tools.{at}.function.name", f"another tool has the name {shown(tool.function.name)}")
        names.add(tool.function.name)
    return names


class ChatCompletionRequest(GenerationRequest):
    """A final message of the assistant is continued."""

    unsupported = unsupported_by(CHAT)
    elsewhere = ELSEWHERE[CHAT]

    messages: Messages
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    max_completion_tokens: AnswerTokens | None = None
    logprobs: bool | None = None
    top_logprobs: Ranks | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: TemplateVariables | None = None
    add_special_tokens: bool | None = None  # True: the tokenizer adds its own to those of the template
    reasoning_effort: Effort | None = None

    @model_validator(mode="after")
    def _check_chat(self) -> Self:
        old, new = self.max_tokens, self.max_completion_tokens
        if old is not None and new is not None and old != new:
            raise refused("max_completion_tokens", f"max_tokens is {old}, max_completion_tokens is {new}: give one")
        check_messages(self.messages)
        check_ending(self.messages, self.continue_final_message, self.add_generation_prompt)
        if self.top_logprobs and not self.logprobs:
            raise refused("top_logprobs", "only with logprobs: true")
        self._check_tools()
        return self

    def _check_tools(self) -> None:
        names = check_names(self.tools or [])
        choice = self.tool_choice
        if choice == "required" and not names:
            raise refused("tool_choice", "required needs tools to choose from, and there are none")
        if isinstance(choice, NamedTool) and choice.function.name not in names:
            raise refused("tool_choice.function.name", f"no tool has the name {shown(choice.function.name)}")
        if not self.offered:
            return
        if self.diffusing:
            raise refused("tools", "not together with diffusing: calls are read once their text is final")
        if self.wanted is not None and self.wanted.schema is None:
            reason = f"not together with {self.wanted.param}, unless tool_choice is none"
            raise refused("tools", f"{reason}: only a JSON format can stand beside tools")
        for param, value in (("min_tokens", self.min_tokens), ("ignore_eos", self.ignore_eos)):
            if value and (self.must_call or self.strict):
                raise refused(param, "not together with calls that follow a grammar, which decides the end")

    @property
    def offered(self) -> list[Tool]:
        """The tools that the model sees. With `tool_choice: "none"` it sees none."""
        return [] if self.tool_choice == "none" else self.tools or []

    @property
    def must_call(self) -> bool:
        """True if the answer is calls and nothing else."""
        return bool(self.offered) and self.tool_choice not in (None, "auto")

    @property
    def strict(self) -> bool:
        """True if calls follow the schemas of tools that have `strict`, though the model may answer without a call."""
        return any(tool.function.strict for tool in self.offered)

    @property
    def callable(self) -> list[tuple[int, Tool]]:
        """The tools that may be called, with their places."""
        name = self.tool_choice.function.name if isinstance(self.tool_choice, NamedTool) else None
        return [(at, tool) for at, tool in enumerate(self.offered) if name in (None, tool.function.name)]

    @property
    def several_calls(self) -> bool:
        """A function that is called by its name is called once, as OpenAI has it."""
        return self.parallel_tool_calls is not False and not isinstance(self.tool_choice, NamedTool)

    @property
    def ranks(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def limit_param(self) -> str:
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"


def _prompts(value: object) -> list[str | list[int]]:
    """Return any of the four forms as a list of prompts. Raises for an empty one."""
    if value is None:
        return []
    prompts: list[Any] = value if isinstance(value, list) else [value]
    if _prompt_kind(value) == "ids":
        prompts = [value]
    elif len(prompts) > limits.PROMPTS:
        raise refused(None, f"must have at most {limits.PROMPTS} prompts, not {len(prompts)}")
    if {_prompt_kind(prompt) for prompt in prompts} not in ({"text"}, {"ids"}):
        reason = "must be a text, a list of texts, token ids or a list of such lists, none of them empty"
        raise refused(None, f"{reason}, not {shown(value)}")
    return prompts


def _prompt_kind(prompt: object) -> str | None:
    if isinstance(prompt, str) and prompt:
        return "text"
    if isinstance(prompt, list) and prompt and all(type(item) is int for item in prompt):
        return "ids"
    return None


Text = Annotated[str, Field(min_length=1)]  # and as long as the context allows, as are ids
Ids = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
Several = Field(min_length=1, max_length=limits.PROMPTS)
Prompts = Text | Annotated[list[Text], Several] | Ids | Annotated[list[Ids], Several]


class Gap(Strict):
    """Positions of a template that are filled."""

    tokens: AnswerTokens


def _template_part(value: object) -> str | Gap:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return Gap.model_validate(value)
    raise refused(None, f'must be a text, or a gap such as {{"tokens": 8}}, not {shown(value)}')


TemplatePart = Annotated[str | Gap, PlainValidator(_template_part, json_schema_input_type=str | Gap)]
# What a template excludes: it says itself what is given, how long an answer is, and where it ends.
NOT_IN_TEMPLATES = ("prompt", "suffix", "echo", "max_tokens", "min_tokens", "stop", "stop_token_ids")


class CompletionRequest(GenerationRequest):
    unsupported = unsupported_by(COMPLETIONS)
    elsewhere = ELSEWHERE[COMPLETIONS]

    prompt: Annotated[list[str | list[int]], PlainValidator(_prompts, json_schema_input_type=Prompts | None)] = Field(
        default_factory=list
    )
    template: Annotated[list[TemplatePart], Field(fail_fast=True, max_length=limits.TEMPLATE)] | None = None
    logprobs: Ranks | None = None
    echo: bool | None = None
    best_of: Choices | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None  # False: for a prompt that has the tokenizer's first token
    # With echo and logprobs: how the prompt's tokens are scored, and from which one on.
    max_tokens: Annotated[int, Field(ge=0, lt=INT64)] | None = None
    likelihood: Literal["chain", "monte-carlo"] | None = None
    likelihood_samples: Annotated[int, Field(ge=1, le=limits.SAMPLES)] | None = None
    likelihood_start: Annotated[int, Field(ge=1, lt=INT32)] | None = None

    @model_validator(mode="after")
    def _check_template(self) -> Self:
        if self.template is None:
            if not self.prompt:
                raise refused("prompt", "required, unless there is a template", code="missing_parameter")
            return self
        given = {param: getattr(self, param) for param in NOT_IN_TEMPLATES}
        given |= {name: getattr(self, name) is not None for name in ("logprobs", "prompt_logprobs")}
        given["best_of"] = self.choices > self.kept
        for param, value in given.items():
            if value:
                raise refused(param, "not together with template")
        if self.wanted is not None:
            raise refused(self.wanted.param, "not together with template: a grammar writes one text, without gaps")
        after_gap = False
        for at, part in enumerate(self.template):
            if part and after_gap and isinstance(part, Gap):
                raise refused(f"template.{at}", "a gap follows a gap: make them one, or put a text between them")
            after_gap = isinstance(part, Gap) or (after_gap and not part)
        if not any(isinstance(part, Gap) for part in self.template):
            raise refused("template", 'has no gap to fill: give one, such as {"tokens": 8}')
        return self

    @model_validator(mode="after")
    def _check_likelihood(self) -> Self:
        sampled = self.likelihood == "monte-carlo"
        if not self.scores_prompt:
            if self.max_tokens == 0:
                raise refused("max_tokens", "0 is for the likelihood of a prompt: give echo: true and logprobs, too")
            for param in ("likelihood", "likelihood_samples", "likelihood_start"):
                if getattr(self, param) is not None:
                    raise refused(param, "only with echo: true and logprobs")
            return self
        if self.max_tokens not in (0, 1):
            raise refused("max_tokens", "with echo and logprobs it is 0, or 1 for one token more than the prompt")
        if self.likelihood_samples is not None and not sampled:
            raise refused("likelihood_samples", "only with likelihood: 'monte-carlo'")
        if sampled and self.max_tokens:
            raise refused("max_tokens", "0 is needed by likelihood: 'monte-carlo', which only scores the prompt")
        if sampled and self.logprobs:
            raise refused("logprobs", "0 is needed by likelihood: 'monte-carlo', a mean over canvases")
        given = {param: getattr(self, param) for param in (*NOT_SCORED, *DecoderParams.model_fields)}
        given |= {"n": self.kept > 1, "best_of": self.choices > 1}
        given["prompt_logprobs"] = self.prompt_logprobs is not None
        given["repetition_penalty"] = self.repetition_penalty not in (None, 1)
        if self.wanted is not None:
            raise refused(self.wanted.param, NO_ANSWER)
        for param, value in given.items():
            if value or (value is not None and param in DecoderParams.model_fields):
                raise refused(param, NO_ANSWER)
        if self.max_tokens == 0:
            self._check_nothing_is_drawn()
        return self

    def _check_nothing_is_drawn(self) -> None:
        """Refuse parameters that say how tokens are drawn. A `seed` alone draws none, here as at temperature 0."""
        neutral = {"temperature": (0, 1), "top_p": (1,), "top_k": (-1, 0), "min_p": (0,)}
        for param, values in neutral.items():
            given = getattr(self, param)
            if given is not None and given not in values:
                allowed = " or ".join(map(str, values))
                raise refused(param, f"no token is drawn where max_tokens is 0: give {allowed}, or leave it out")

    @property
    def scores_prompt(self) -> bool:
        """True if the answer is the prompt with its log-probabilities."""
        return bool(self.echo) and self.logprobs is not None

    @property
    def samples(self) -> int:
        """The samples of Monte Carlo; 0: the prompt is scored as a chain."""
        return (self.likelihood_samples or SAMPLES) if self.likelihood == "monte-carlo" else 0

    @model_validator(mode="after")
    def _check_completion(self) -> Self:
        if self.best_of is not None and self.best_of < self.kept:
            raise refused("best_of", f"must be at least n, which is {self.kept}, not {self.best_of}")
        if self.choices > self.kept and self.stream:
            raise refused("best_of", "cannot be streamed, since the best is known at the end: leave out one of them")
        if self.suffix and self.wanted is not None:
            raise refused(
                "suffix", f"not together with {self.wanted.param}: no grammar knows how to end before a suffix"
            )
        if self.tries_lengths and self.stream:
            raise refused("suffix", "cannot be streamed while several lengths are tried: give max_tokens, or no stream")
        return self

    @property
    def choices(self) -> int:
        return self.best_of or self.kept

    @property
    def limit_param(self) -> str:
        return "max_tokens" if self.template is None else "template"

    @property
    def answer_limit(self) -> int | None:
        if self.template is None:
            return self.max_tokens
        return sum(part.tokens for part in self.template if isinstance(part, Gap))

    @property
    def tries_lengths(self) -> bool:
        """True for an answer before a suffix, which must have the right length, without a length given."""
        return bool(self.suffix) and self.answer_limit is None

    @property
    def ranks(self) -> int | None:
        # The best answer is chosen by its log-probability, shown or not.
        chosen = 0 if self.choices > self.kept or self.tries_lengths else None
        return chosen if self.logprobs is None else self.logprobs

    @property
    def shows_scores(self) -> bool:
        return self.logprobs is not None
