"""The body of `/v1/chat/completions`, and the messages of a chat."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    model_validator,
)

from ..errors import shown
from ..http.body import Strict, refused
from . import limits
from .requests import AnswerTokens, GenerationRequest, Ranks
from .tools import AnyObject, Label, NamedTool, Tool, ToolCalls, ToolChoice, Tools
from .unsupported import CHAT, ELSEWHERE, UNSUPPORTED, unsupported_by


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
