"""The bodies of `/v1/messages` and `/v1/messages/count_tokens`, in Anthropic's form. Each is translated to a
`ChatCompletionRequest`, whose checks hold here too."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, PlainValidator, ValidationError, model_validator

from ..errors import InvalidValue, from_validation, shown
from ..http.body import Body, Strict, refused
from . import limits
from .chat_request import ChatCompletionRequest
from .formats import Schema
from .requests import INT32, INT64, AnswerTokens, DecoderName, DecoderParams, Hint, ModelName, Salt, Seconds, Stops
from .tools import AnyObject, Name, Parameters
from .unsupported import COUNT_TOKENS, ELSEWHERE, MESSAGES, UNSUPPORTED

Json = dict[str, Any]
ERROR = "Error: "  # before the text of a result that is one


class CacheControl(Strict):
    """A no-op: prompts that begin alike share what can be shared."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class TextBlock(Strict):
    unsupported = UNSUPPORTED["text"]

    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None


def _texts(value: object) -> object:
    if value is None or isinstance(value, list):
        return value or []
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    raise refused(None, f"must be a string or a list of blocks, not {shown(value)}")


TextBlocks = Annotated[list[TextBlock], Field(fail_fast=True, max_length=limits.PARTS)]
Texts = Annotated[TextBlocks, BeforeValidator(_texts, json_schema_input_type=str | TextBlocks | None)]


def _joined(blocks: list[TextBlock]) -> str:
    return "".join(block.text for block in blocks)


class ToolUse(Strict):
    """A call of an earlier answer, as it was sent."""

    unsupported = UNSUPPORTED["tool_use"]

    type: Literal["tool_use"]
    id: Annotated[str, Field(min_length=1, max_length=limits.LABEL_CHARS)]
    name: Annotated[str, Field(min_length=1, max_length=limits.NAME_CHARS)]
    input: AnyObject
    cache_control: CacheControl | None = None

    def for_chat(self) -> Json:
        function = {"name": self.name, "arguments": json.dumps(self.input, ensure_ascii=False)}
        return {"id": self.id, "type": "function", "function": function}


class ToolResult(Strict):
    unsupported = UNSUPPORTED["tool_result"]

    type: Literal["tool_result"]
    tool_use_id: Annotated[str, Field(max_length=limits.LABEL_CHARS)]
    content: Texts = Field(default_factory=list)
    is_error: bool | None = None
    cache_control: CacheControl | None = None

    def for_chat(self) -> Json:
        text = (ERROR if self.is_error else "") + _joined(self.content)
        return {"role": "tool", "tool_call_id": self.tool_use_id, "content": text}


class Thinking(Strict):
    """Reasoning of an earlier answer, for templates that show it. Here it has no signature."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


Block = TextBlock | ToolUse | ToolResult | Thinking
BLOCKS: dict[str, type[Block]] = {
    "text": TextBlock,
    "tool_use": ToolUse,
    "tool_result": ToolResult,
    "thinking": Thinking,
}
OWNERS = {"text": None, "tool_use": "assistant", "tool_result": "user", "thinking": "assistant"}  # None: anyone


def _block(value: object) -> Block:
    if not isinstance(value, dict):
        raise refused(None, f"must be an object, not {shown(value)}")
    if "type" not in value:
        raise refused("type", f"required: one of {', '.join(BLOCKS)}", code="missing_parameter")
    kind = value["type"]
    if not isinstance(kind, str) or kind not in BLOCKS:
        raise refused("type", f"must be one of {', '.join(BLOCKS)}: others are not supported, {shown(kind)} among them")
    return BLOCKS[kind].model_validate(value)


AnyBlock = Annotated[Block, PlainValidator(_block, json_schema_input_type=Block)]
Blocks = Annotated[list[AnyBlock], Field(fail_fast=True, max_length=limits.PARTS)]


class Turn(Strict):
    """One of the `messages`."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[Blocks, BeforeValidator(_texts, json_schema_input_type=str | Blocks)]

    @model_validator(mode="before")
    @classmethod
    def _check_content(cls, raw: object) -> object:
        if isinstance(raw, dict) and raw.get("content", "") is None:
            raise refused("content", "must be a string or a list of blocks, not None")
        return raw

    @model_validator(mode="after")
    def _check(self) -> Self:
        for at, block in enumerate(self.content):
            if OWNERS[block.type] not in (None, self.role):
                raise refused(f"content.{at}.type", f"only a message with role {OWNERS[block.type]!r} may have it")
        return self

    def for_chat(self, place: str) -> Iterator[tuple[str, Json]]:
        """The messages of a chat, each with the place that it comes from."""
        texts = [block for block in self.content if isinstance(block, TextBlock)]
        if self.role == "assistant":
            calls = [block.for_chat() for block in self.content if isinstance(block, ToolUse)]
            message: Json = {"role": self.role, "content": _joined(texts) if texts or not calls else None}
            reasoning = "".join(block.thinking for block in self.content if isinstance(block, Thinking))
            yield (
                place,
                message
                | ({"tool_calls": calls} if calls else {})
                | ({"reasoning_content": reasoning} if reasoning else {}),
            )
            return
        said: list[TextBlock] = []
        for at, block in enumerate(self.content):
            if isinstance(block, TextBlock):
                said.append(block)
            elif isinstance(block, ToolResult):
                if said:
                    yield place, {"role": self.role, "content": _joined(said)}
                said = []
                yield f"{place}.content.{at}", block.for_chat()
        if said or not self.content:
            yield place, {"role": self.role, "content": _joined(said)}


class MessageTool(Strict):
    """A tool of the client. `eager_input_streaming` is a hint on when text is sent: a no-op."""

    unsupported = UNSUPPORTED["input_schema"]

    type: Literal["custom"] | None = None
    name: Name
    description: Annotated[str, Field(max_length=limits.GRAMMAR_CHARS)] | None = None
    input_schema: Parameters
    strict: bool | None = None
    eager_input_streaming: bool | None = None
    cache_control: CacheControl | None = None

    def for_chat(self) -> Json:
        function = {"name": self.name, "description": self.description, "parameters": self.input_schema}
        return {"type": "function", "function": {**function, "strict": self.strict}}


class MessageToolChoice(Strict):
    type: Literal["auto", "any", "tool", "none"]
    name: Annotated[str, Field(max_length=limits.NAME_CHARS)] | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.name is not None) != (self.type == "tool"):
            raise refused("name", "it goes with type 'tool', which needs it")
        return self

    def for_chat(self) -> Json:
        choice: str | Json = {"any": "required"}.get(self.type, self.type)
        if self.name is not None:
            choice = {"type": "function", "function": {"name": self.name}}
        return {"tool_choice": choice} | ({"parallel_tool_calls": False} if self.disable_parallel_tool_use else {})


class ThinkingConfig(Strict):
    """Only a chat template's variable `enable_thinking` switches a model's reasoning; `adaptive` leaves it as it is."""

    unsupported = UNSUPPORTED["thinking"]

    type: Literal["adaptive", "disabled", "enabled"]


class OutputFormat(Strict):
    type: Literal["json_schema"]
    text: Schema = Field(alias="schema")

    def for_chat(self) -> Json:
        return {"type": "json_schema", "json_schema": {"name": "output", "schema": self.text}}


class OutputConfig(Strict):
    effort: Literal["low", "medium", "high", "xhigh"] | None = None
    format: OutputFormat | None = None


class MessageMetadata(Strict):
    user_id: Hint | None = None


class MessageTokensRequest(Body):
    """The parameters that make a prompt."""

    unsupported = UNSUPPORTED[COUNT_TOKENS]

    model: ModelName | None = None
    messages: Annotated[list[Turn], Field(fail_fast=True, min_length=1, max_length=limits.MESSAGES)]
    system: Texts = Field(default_factory=list)
    tools: Annotated[list[MessageTool], Field(fail_fast=True, max_length=limits.TOOLS)] | None = None
    tool_choice: MessageToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None

    @model_validator(mode="after")
    def _check_chat(self) -> Self:
        if self.tool_choice is not None and self.tool_choice.type == "any" and not self.tools:
            raise refused("tool_choice", "any needs tools to choose from, and there are none")
        try:
            self.chat  # noqa: B018 - it is made here, where long bodies are checked
        except ValidationError as error:
            found = self.placed(from_validation(error.errors(include_url=False)[0]))
            param = found.param or ""
            raise refused(param, found.message.removeprefix(f"{param}: "), found.code or "invalid_value") from None
        return self

    @cached_property
    def chat(self) -> ChatCompletionRequest:
        """The same request as a chat."""
        return ChatCompletionRequest.model_validate(self._for_chat())

    def placed(self, error: InvalidValue) -> InvalidValue:
        """An error about a message of the chat, as one about the block or the message that it comes from."""
        found = re.match(r"messages\.(\d+)", error.param or "")
        if found is None:
            return error
        place, was = self._messages()[int(found[1])][0], error.param or ""
        inner = was[found.end() :].replace("tool_call_id", "tool_use_id").replace("tool_calls", "content")
        message = error.message.replace(was, place + inner, 1)
        return InvalidValue(place + inner, message, code=error.code or "invalid_value")

    def _messages(self) -> list[tuple[str, Json]]:
        system = [("system", {"role": "system", "content": _joined(self.system)})] if self.system else []
        return [*system, *(one for at, turn in enumerate(self.messages) for one in turn.for_chat(f"messages.{at}"))]

    def _for_chat(self) -> Json:
        """The body of the chat."""
        chat: Json = {"model": self.model, "messages": [message for _, message in self._messages()]}
        chat["tools"] = None if self.tools is None else [tool.for_chat() for tool in self.tools]
        chat |= {} if self.tool_choice is None else self.tool_choice.for_chat()
        if (output := self.output_config) is not None:
            chat["reasoning_effort"] = output.effort
            chat["response_format"] = None if output.format is None else output.format.for_chat()
        return chat


class MessagesRequest(DecoderParams, MessageTokensRequest):
    """Anthropic's parameters, and ours for the decoder."""

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {**UNSUPPORTED[COUNT_TOKENS], **UNSUPPORTED[MESSAGES]}
    elsewhere = ELSEWHERE[MESSAGES]

    max_tokens: AnswerTokens
    stop_sequences: Stops | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, lt=INT32)] | None = None
    seed: Annotated[int, Field(ge=-INT64, lt=INT64)] | None = None
    decoder: DecoderName = None
    cache_salt: Salt | None = None
    timeout: Seconds | None = None
    # These change nothing.
    metadata: MessageMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None

    @classmethod
    def offers(cls) -> str:
        own = [name for name in cls.model_fields if name not in DecoderParams.model_fields]
        return f"known here, besides the decoders' parameters: {', '.join(own)}"

    def _for_chat(self) -> Json:
        names = ["max_tokens", "stream", "temperature", "top_p", "top_k", "seed", "decoder", "cache_salt", "timeout"]
        same = {name: getattr(self, name) for name in (*names, *DecoderParams.model_fields)}
        return super()._for_chat() | same | {"stop": self.stop_sequences}
