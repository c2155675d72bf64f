"""The body of `/v1/responses`: OpenAI's items and flat tools. It becomes a chat, whose path answers it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PlainValidator, ValidationError, model_validator

from ..errors import ApiError, from_validation, shown
from ..http.body import Strict, refused
from ..message_errors import outside_quotes
from ..structured.grammar import ANY_OBJECT, Wanted
from . import limits
from .chat_request import ChatCompletionRequest, Effort, TemplateVariables
from .formats import Schema
from .requests import AnswerTokens, GenerationRequest, Ranks
from .tools import CalledFunction, Choice, Function, Label, Name
from .unsupported import ELSEWHERE, RESPONSES, UNSUPPORTED, unsupported_by

Json = dict[str, Any]
Status = Literal["in_progress", "completed", "incomplete"]
LOGPROBS, ENCRYPTED = "message.output_text.logprobs", "reasoning.encrypted_content"


class TextItem(Strict):
    """A part of a message's content. Log-probabilities of an earlier answer change nothing."""

    unsupported = UNSUPPORTED["input_text"]

    type: Literal["input_text", "output_text"]
    text: str
    logprobs: list[object] | None = None


def _content(value: object) -> object:
    if isinstance(value, str):
        return [{"type": "input_text", "text": value}]
    if isinstance(value, list):
        return value
    raise refused(None, f"must be a string or a list of text parts, not {shown(value)}")


Texts = Annotated[list[TextItem], Field(fail_fast=True, max_length=limits.PARTS)]
Content = Annotated[Texts, BeforeValidator(_content, json_schema_input_type=str | Texts)]


class Item(Strict):
    """A part of the input. Its `id` and `status`, which an earlier answer gave it, change nothing."""

    unsupported = UNSUPPORTED["input"]

    id: Label | None = None
    status: Status | None = None


class MessageItem(Item):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content)


class CallItem(Item, CalledFunction):
    """A call of an earlier answer."""

    type: Literal["function_call"]
    call_id: Annotated[str, Field(min_length=1, max_length=limits.LABEL_CHARS)]


class ResultItem(Item):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: Label
    output: Content
    name: Annotated[str, Field(min_length=1, max_length=limits.NAME_CHARS)] | None = None

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.output)


class ReasoningText(Strict):
    type: Literal["reasoning_text", "summary_text", "output_text"]
    text: str


Thoughts = Annotated[list[ReasoningText], Field(fail_fast=True, max_length=limits.PARTS)]


class ReasoningItem(Item):
    """The reasoning of an earlier answer, for templates that show it: its content, or else its summary."""

    type: Literal["reasoning"]
    summary: Thoughts | None = None
    content: Thoughts | None = None

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content or self.summary or ())


AnyItem = MessageItem | CallItem | ResultItem | ReasoningItem
ITEMS: dict[object, type[MessageItem] | type[CallItem] | type[ResultItem] | type[ReasoningItem]] = {
    "message": MessageItem,
    "function_call": CallItem,
    "function_call_output": ResultItem,
    "reasoning": ReasoningItem,
}


def _item(value: object) -> AnyItem:
    if not isinstance(value, dict):
        raise refused(None, f"must be an object, not {shown(value)}")
    kind = value.get("type", "message")
    model = ITEMS.get(kind) if isinstance(kind, str) else None
    if model is None:
        raise refused("type", f"must be {', '.join(map(str, ITEMS))}, not {shown(kind)}", code="unsupported_parameter")
    return model.model_validate(value)


def _input(value: object) -> object:
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if isinstance(value, list):
        return value
    raise refused(None, f"must be a string or a list of items, not {shown(value)}")


Items = Annotated[
    list[Annotated[AnyItem, PlainValidator(_item, json_schema_input_type=AnyItem)]],
    Field(fail_fast=True, min_length=1, max_length=limits.MESSAGES),
]


def _no_hosted(value: object) -> object:
    """Refuse a tool that the server would have to run itself."""
    if isinstance(value, dict) and value.get("type", "function") != "function":
        reason = f"only functions can be called here, not {shown(value['type'])}"
        raise refused("type", reason, code="unsupported_parameter")
    return value


class FunctionTool(Function):
    """A function, without the object around it that chats have."""

    unsupported = UNSUPPORTED["function tools"]

    type: Literal["function"]

    def for_chat(self) -> Json:
        function = {name: getattr(self, name) for name in Function.model_fields}
        return {"type": "function", "function": function}

    def answered(self) -> Json:
        """The tool as an answer repeats it."""
        function = {name: getattr(self, name) for name in Function.model_fields}
        return {"type": "function", **function, "strict": bool(self.strict)}


class NamedFunctionTool(Strict):
    type: Literal["function"]
    name: Annotated[str, Field(max_length=limits.NAME_CHARS)]


def _choice(value: object) -> object:
    if isinstance(value, dict):
        return NamedFunctionTool.model_validate(_no_hosted(value))
    if value in ("none", "auto", "required"):
        return value
    raise refused(None, f"must be none, auto, required or a function by its name, not {shown(value)}")


ToolChoice = Annotated[
    Choice | NamedFunctionTool, PlainValidator(_choice, json_schema_input_type=Choice | NamedFunctionTool)
]


class TextFormat(Strict):
    """With `strict` false the schema is enforced all the same."""

    type: Literal["text", "json_object", "json_schema"]
    name: Name | None = None
    description: Annotated[str, Field(max_length=limits.GRAMMAR_CHARS)] | None = None
    text: Schema | None = Field(None, alias="schema")
    strict: bool | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        given = {"name": self.name, "schema": self.text, "description": self.description, "strict": self.strict}
        for name, value in given.items():
            if self.type != "json_schema" and value is not None:
                raise refused(name, "only with type 'json_schema'")
            if self.type == "json_schema" and value is None and name in ("name", "schema"):
                raise refused(name, "required with type 'json_schema'", code="missing_parameter")
        return self

    @property
    def wanted(self) -> Wanted | None:
        if self.text is not None:
            return Wanted("text.format.schema", schema=self.text)
        return Wanted("text.format", schema=ANY_OBJECT) if self.type == "json_object" else None

    def for_chat(self) -> Json:
        if self.text is None:
            return {"type": self.type}
        return {"type": self.type, "json_schema": {"name": self.name, "schema": self.text}}

    def answered(self) -> Json:
        """The format as an answer repeats it."""
        if self.text is None:
            return {"type": self.type}
        given = {"type": self.type, "name": self.name, "schema": json.loads(self.text), "strict": self.strict}
        return given if self.description is None else {**given, "description": self.description}


class TextOptions(Strict):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningOptions(Strict):
    unsupported = UNSUPPORTED["reasoning"]

    effort: Effort | None = None


Included = Annotated[list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]], Field(max_length=16)]
Hosted = BeforeValidator(_no_hosted, json_schema_input_type=FunctionTool)
Tools = Annotated[list[Annotated[FunctionTool, Hosted]], Field(fail_fast=True, max_length=limits.TOOLS)]


class ResponsesRequest(GenerationRequest):
    """OpenAI's parameters, and what else both completion endpoints have."""

    unsupported = unsupported_by(RESPONSES)
    elsewhere = ELSEWHERE[RESPONSES]

    input: Annotated[Items, BeforeValidator(_input, json_schema_input_type=str | Items)]
    instructions: str | None = None
    max_output_tokens: AnswerTokens | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    include: Included | None = None
    top_logprobs: Ranks | None = None
    chat_template_kwargs: TemplateVariables | None = None

    @model_validator(mode="after")
    def _check_responses(self) -> Self:
        if self.top_logprobs and not self.scored:
            raise refused("top_logprobs", f"only with include: [{LOGPROBS!r}]")
        if isinstance(self.input[-1], ReasoningItem):
            raise refused(f"input.{len(self.input) - 1}", "reasoning cannot be continued: what it led to must follow")
        return self

    def _formats(self) -> Iterator[Wanted]:
        if self.text is not None and self.text.format is not None and self.text.format.wanted is not None:
            yield self.text.format.wanted
        yield from super()._formats()

    @property
    def limit_param(self) -> str:
        return "max_output_tokens"

    @property
    def scored(self) -> bool:
        return LOGPROBS in (self.include or ())

    @cached_property
    def _dialogue(self) -> tuple[list[Json], list[str]]:
        """The messages of the chat, and the item that each ends with. Reasoning, text and calls of one answer are one
        message."""
        messages: list[Json] = []
        places: list[str] = []
        if self.instructions is not None:
            messages.append({"role": "system", "content": self.instructions})
            places.append("instructions")
        for at, item in enumerate(self.input):
            added = _message(item)
            last = messages[-1] if messages else {}
            if added["role"] == last.get("role") == "assistant" and _continues(last, item):
                last |= _joined(last, added)
                places[-1] = f"input.{at}"
            else:
                messages.append(added)
                places.append(f"input.{at}")
        for message in messages:
            if not message.get("tool_calls"):
                message.setdefault("content", "")
        return messages, places

    def chat(self) -> ResponsesChat:
        """The chat that answers this. Raises an `ApiError` with the names that parameters have in a chat."""
        names = self.model_fields_set & GenerationRequest.model_fields.keys() - self.unsupported.keys()
        chat: Json = {name: getattr(self, name) for name in names}
        chat |= {"messages": self._dialogue[0], "max_tokens": self.max_output_tokens, "stream": self.stream}
        chat |= {"chat_template_kwargs": self.chat_template_kwargs, "parallel_tool_calls": self.parallel_tool_calls}
        chat["tools"] = [tool.for_chat() for tool in self.tools or ()]
        choice = self.tool_choice
        if isinstance(choice, NamedFunctionTool):
            chat["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
        else:
            chat["tool_choice"] = choice
        if self.reasoning is not None:
            chat["reasoning_effort"] = self.reasoning.effort
        if self.scored:
            chat |= {"logprobs": True, "top_logprobs": self.top_logprobs}
        if self.text is not None and self.text.format is not None:
            chat["response_format"] = self.text.format.for_chat()
        try:
            return ResponsesChat.model_validate(chat)
        except ValidationError as error:
            raise from_validation(error.errors(include_url=False)[0]) from None

    def name(self, error: ApiError) -> None:
        """Give the parameters in an error the names that they have here."""
        places = self._dialogue[1]

        def place(found: re.Match[str]) -> str:
            at = int(found[1])
            return (places[at] if at < len(places) else "input") + (".call_id" if found[2] == ".tool_call_id" else "")

        def named(text: str) -> str:
            text = MESSAGE.sub(place, text)
            for pattern, name in NAMES:
                text = pattern.sub(name, text)
            return text

        error.message = outside_quotes(error.message, named)
        error.param = error.param and named(error.param)


# After a slash there are keys of the client's schemas.
MESSAGE = re.compile(r"(?<![/\w])messages\.(\d+)(\.tool_call_id|\.tool_calls)?")
NAMES = [
    (re.compile(rf"(?<![/\w]){pattern}\b"), name)
    for pattern, name in (
        ("messages", "input"),
        (r"tools\.(\d+)\.function", r"tools.\1"),
        (r"tool_choice\.function", "tool_choice"),
        ("reasoning_effort", "reasoning.effort"),
        ("max_tokens", "max_output_tokens"),
    )
]


class ResponsesChat(ChatCompletionRequest):
    """The chat that a request to `/v1/responses` becomes. What an answer may still be refused for has its names."""

    @property
    def limit_param(self) -> str:
        return "max_output_tokens"

    @property
    def answer_limit(self) -> int | None:
        return self.max_tokens

    @property
    def ranks_param(self) -> str:
        return "include"

    def _formats(self) -> Iterator[Wanted]:
        for wanted in super()._formats():
            param = wanted.param.replace("response_format.json_schema", "text.format")
            yield replace(wanted, param=param.replace("response_format", "text.format"))


def _message(item: AnyItem) -> Json:
    """The message of one item, without what it has not."""
    if isinstance(item, MessageItem):
        return {"role": item.role, "content": item.text}
    if isinstance(item, ResultItem):
        named = {} if item.name is None else {"name": item.name}
        return {"role": "tool", "tool_call_id": item.call_id, "content": item.text, **named}
    if isinstance(item, ReasoningItem):
        return {"role": "assistant", "reasoning_content": item.text}
    function = {"name": item.name, "arguments": item.arguments}
    return {"role": "assistant", "tool_calls": [{"id": item.call_id, "type": "function", "function": function}]}


def _continues(last: Json, item: AnyItem) -> bool:
    """True if an item belongs to the assistant's message before it. A text after a text is a message of its own."""
    if isinstance(item, ReasoningItem):
        return "content" not in last and "tool_calls" not in last
    return not isinstance(item, MessageItem) or "content" not in last or "tool_calls" in last


def _joined(last: Json, added: Json) -> Json:
    return {name: last[name] + value if name in last else value for name, value in added.items() if name != "role"}
