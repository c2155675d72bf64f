"""`POST /v1/chat/completions`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from ..errors import InvalidValue, ascii_name
from ..schema.chat_request import ChatCompletionRequest, Message
from ..schema.openapi import ChatCompletion, answered
from ..schema.responses import ChatReply, new_envelope
from ..schema.tools import Tool
from ..structured.call_grammar import CallGrammar
from ..structured.grammar import ANY_OBJECT, Wanted
from ..text.reasoning import ReasoningFormat
from ..text.splitter import AnswerSplitter, CallRules
from ..text.tokenizer import Tokenizer
from ..text.tool_calls import ToolFormat
from .answer_parts import Reading, SplitReading
from .generation import PER_TEXT, Backend, Prompt, check_choices, generation_router, respond

TAIL = 16  # tokens at a prompt's end that may open the model's reasoning


def chat_routes(backend: Backend) -> APIRouter:
    router, card, tokenizer = generation_router(), backend.card, backend.tokenizer

    @router.post("/chat/completions", responses=answered(ChatCompletion))
    async def chat_completions(body: ChatCompletionRequest, request: Request) -> Response:
        turn = await prepare(backend, request, body, "messages")
        split = turn.form is not None or turn.reasoning is not None
        envelope = new_envelope("chatcmpl", card.named(body.model), bool(body.streaming.include_usage))
        reading = turn.reading(tokenizer, body) if split else None
        return await respond(backend, request, body, [turn.prompt], ChatReply(envelope, split), reading)

    return router


@dataclass(frozen=True, slots=True)
class Turn:
    """An answer that is due: its prompt, and the forms of its calls and its reasoning, None where it has none."""

    prompt: Prompt
    form: ToolFormat | None
    reasoning: ReasoningFormat | None

    def reading(self, tokenizer: Tokenizer, body: ChatCompletionRequest) -> Reading:
        return _reading(tokenizer, body, self.prompt.ids, self.form, self.reasoning)


async def prepare(backend: Backend, request: Request, body: ChatCompletionRequest, param: str) -> Turn:
    """Check a chat and encode its prompt, which is the request's parameter `param`. Raises an `ApiError`."""
    card = backend.card
    card.named(body.model)
    check_choices(backend, body, 1)
    form = _tool_format(backend, body)
    conversation = Conversation(backend.tokenizer, body.messages, body.offered, body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        conversation.suggest("reasoning_effort", body.reasoning_effort)
    context, specials = card.max_model_len, bool(body.add_special_tokens)
    ids = await backend.encode(request, param, conversation.chars, lambda: conversation.ids(context, specials))
    reasoning = None if body.wanted is not None or body.must_call else backend.formats.reasoning
    return Turn(Prompt(param, ids), form, reasoning)


class Conversation:
    """The messages, tools and variables that a chat template gets. Raises `InvalidValue` for those that it does not
    show."""

    def __init__(
        self, tokenizer: Tokenizer, messages: list[Message], tools: list[Tool], variables: Mapping[str, Any]
    ) -> None:
        self._tokenizer = tokenizer
        self._messages = [message.for_template() for message in messages]
        self._tools = [tool.for_template() for tool in tools] or None
        self._variables = dict(variables)
        self.chars = sum(message.chars + PER_TEXT for message in messages)
        if self._tools or self._variables:
            self.chars += len(json.dumps([self._tools, self._variables]))
        template = tokenizer.template
        if template is None:  # whoever renders says so
            return
        if any(message.beyond_text for message in messages) and not template.shows_calls:
            at = next(at for at, message in enumerate(messages) if message.beyond_text)
            reason = "the model's chat template does not show calls of tools and their results"
            raise InvalidValue(f"messages.{at}", f"messages.{at}: {reason}")
        for name in self._variables:
            if name not in template.variables:
                param = f"chat_template_kwargs.{name}"
                known = ", ".join(sorted(template.variables)) or "none"
                reason = f"the model's chat template has no such variable; it has {known}"
                raise InvalidValue(param, f"{ascii_name(param)}: {reason}")

    def suggest(self, name: str, value: str) -> None:
        """Set a variable if the template has it. Raises `InvalidValue` if it is set to something else."""
        if self._variables.get(name, value) != value:
            raise InvalidValue(name, f"{name}: chat_template_kwargs has another value: give one")
        template = self._tokenizer.template
        if template is not None and name in template.variables:
            self._variables[name] = value

    def ids(self, context: int, specials: bool) -> list[int]:
        """The prompt; with `specials` the tokenizer adds its own. Raises what `Tokenizer.encode_chat` does."""
        return self._tokenizer.encode_chat(self._messages, context, self._tools, self._variables, specials)


def _tool_format(backend: Backend, body: ChatCompletionRequest) -> ToolFormat | None:
    """The form of the answer's calls; None if there are no tools. Raises `InvalidValue` where they are refused."""
    form = backend.formats.tools
    if not body.offered or not backend.tokenizer.has_template:
        return None
    if form is None:
        raise InvalidValue("tools", f"tools: {backend.formats.no_tools}", code="unsupported_parameter")
    if form.gemma and _guided(body):
        param = "tool_choice" if body.must_call else "tools"
        reason = f"the arguments of this model's calls are no JSON ({form.name}), so no grammar can enforce a schema"
        raise InvalidValue(param, f"{param}: {reason}: only tool_choice auto, without strict or a format, is supported")
    return form


def _reading(
    tokenizer: Tokenizer,
    body: ChatCompletionRequest,
    prompt: list[int],
    form: ToolFormat | None,
    reasoning: ReasoningFormat | None,
) -> Reading:
    inside = False
    if reasoning is not None:
        last = body.messages[-1]
        if last.role == "assistant":  # its text is continued
            inside = last.text.rfind(reasoning.open) > last.text.rfind(reasoning.close)
            reasoning = reasoning if inside else None
        else:
            tail = tokenizer.decode(prompt[-TAIL:], specials=True)
            inside = tail.rstrip().endswith(reasoning.open.rstrip())
    rules, wanted = None, None
    markers = reasoning.markers if reasoning is not None else ()
    if form is not None:
        enforced = _guided(body)
        names = frozenset(tool.function.name for _, tool in body.callable)
        rules = CallRules(form, names, most=None if body.several_calls else 1, early=enforced)
        if enforced:
            wanted = _grammar(tokenizer, body, form, reasoning)
        markers += form.markers
    tokens = tokenizer.tokens_of(markers).values()
    shown = tuple(token for token in tokens if token in tokenizer.special_ids)
    return SplitReading(lambda: AnswerSplitter(reasoning, inside, rules), shown, wanted)


def _guided(body: ChatCompletionRequest) -> bool:
    """Return whether a grammar guides the answer, if it may call."""
    return body.must_call or body.strict or body.wanted is not None


def _grammar(
    tokenizer: Tokenizer, body: ChatCompletionRequest, form: ToolFormat, reasoning: ReasoningFormat | None
) -> Wanted:
    """The grammar of an answer that must call, that calls or has a format, or in which each call follows its tool's
    schema."""
    others = () if reasoning is None else tuple(tokenizer.tokens_of(reasoning.markers).values())
    calls = CallGrammar(
        form.open,
        form.close,
        form.gap,
        form.arguments,
        form.between,
        tuple((at, tool.function.name, _schema(body, tool)) for at, tool in body.callable),
        tuple(tokenizer.tokens_of(form.markers).items()),
        several=body.several_calls,
        free=not body.must_call and body.wanted is None,
        others=others,
        answer=None if body.must_call or body.wanted is None else body.wanted.schema,
    )
    return Wanted("tools", calls=calls.job())


def _schema(body: ChatCompletionRequest, tool: Tool) -> str:
    """The schema that a call's arguments follow: without a request for it, any object."""
    return tool.function.schema_text() if body.must_call or tool.function.strict else ANY_OBJECT
