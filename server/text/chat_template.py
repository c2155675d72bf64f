"""A checkpoint's chat template: compiled and tried at start, then rendered with a bound on its work."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property, wraps
from string import Formatter
from types import MappingProxyType
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateRuntimeError, TemplateSyntaxError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

# `role` and `content`, and what else a client has given: `name`, `tool_calls`, `tool_call_id`, `reasoning_content`.
ChatMessage = Mapping[str, Any]
Tool = Mapping[str, Any]  # as OpenAI has it
NONE: Mapping[str, Any] = MappingProxyType({})

MARKER = "asynclane"  # stands for a message's text, to find where the template puts it
RESULT = "its result"  # of a tool, for the same purpose
# A tool, and a conversation that calls it, to find what a template shows.
TOOL: Tool = {
    "type": "function",
    "function": {"name": MARKER, "description": "-", "parameters": {"type": "object", "properties": {}}},
}
CALL = {"id": "call", "type": "function", "function": {"name": MARKER, "arguments": {}}}
ASKED: ChatMessage = {"role": "user", "content": "-"}
CALLED: Sequence[ChatMessage] = (
    ASKED,
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call", "name": MARKER, "content": RESULT},
)
OWN = frozenset(("messages", "tools", "documents", "add_generation_prompt"))  # variables that no client sets
SHOWN_CHARS = 200  # of an error

# The unit of work is a character that a template handles. At the bound, it has run for well below a second.
STEP = 1000  # of a loop, a call or a filter
ELEMENT = 50  # of a list
BOUND = 2 * 10**7
BOUND_PER_CHAR = 1000  # is added for each character of the messages, and a message counts as MESSAGE_CHARS more
MESSAGE_CHARS = 100
LARGEST = 2**63
EACH = "each of"  # a filter that no template can name
# Filters that do not look into the elements of a list.
SHALLOW = frozenset(
    "count d default dictsort first items last length list map reject rejectattr reverse select selectattr".split()
)
# Filters and methods of strings of which no argument is a width or a count of what they make.
NO_WIDTH = SHALLOW | {"join", "replace"}


class TemplateFailure(Exception):
    """The template cannot be compiled, or fails; the message is one line."""


class TemplateRefusal(TemplateError):
    """The template does not accept the messages, and calls `raise_exception`."""


class TooMuchWork(TemplateRuntimeError):
    """The template has reached the bound on its work."""


class ChatTemplate:
    """Renders conversations. `variables` are the special tokens that the template may name.

    The template gets content as a string, or as a list of one part if it shows the text only then. Raises
    `TemplateFailure` if it does not compile, fails, or shows the text of a message in neither case.
    """

    def __init__(self, source: Any, variables: Mapping[str, Any]) -> None:
        self.source = str(source)
        self._sandbox = _Sandbox()
        self._variables = variables
        self._sandbox.allow(BOUND)
        try:
            self._template = self._sandbox.from_string(source)
        except Exception as error:  # noqa: BLE001 - Python compiles it too
            raise TemplateFailure(f"the chat template does not compile: {_line(error)}") from None
        self._parts = self._takes_parts()

    @cached_property
    def variables(self) -> frozenset[str]:
        """The names of the variables that the template reads and that a client may set."""
        names = meta.find_undeclared_variables(self._sandbox.parse(self.source))
        return frozenset(names - OWN - self._variables.keys())

    @cached_property
    def shows_tools(self) -> bool:
        """True if the template writes tools into the prompt."""
        return self._shows([ASKED], MARKER)

    @cached_property
    def shows_calls(self) -> bool:
        """True if the template writes calls of tools, and their results."""
        return self._shows(CALLED[:2], MARKER, tools=False) and self._shows(CALLED, RESULT)

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        opened: bool,
        tools: Sequence[Tool] | None = None,
        variables: Mapping[str, Any] = NONE,
    ) -> str:
        """The text of a conversation; with `opened`, an answer begins at its end. `variables` are the client's. Raises
        `TemplateRefusal` and `TemplateFailure`."""
        return self._render(messages, opened, self._parts, tools, variables)

    def around_last(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Tool] | None = None,
        variables: Mapping[str, Any] = NONE,
    ) -> tuple[str, str] | None:
        """The text before and after the last message's content; None if the template does not show it."""
        *before, last = messages
        marked = [*before, {**last, "content": MARKER}]
        text = self.render(marked, opened=False, tools=tools, variables=variables)
        opened, marker, closed = text.rpartition(MARKER)
        return (opened, closed) if marker else None

    def _render(
        self,
        messages: Sequence[ChatMessage],
        opened: bool,
        parts: bool,
        tools: Sequence[Tool] | None = None,
        variables: Mapping[str, Any] = NONE,
    ) -> str:
        def content(text: str) -> str | list[dict[str, str]]:
            return [{"type": "text", "text": text}] if parts else text

        chars = sum(MESSAGE_CHARS + _chars(message) for message in messages) + _chars(tools) + _chars(variables)
        self._sandbox.allow(BOUND + BOUND_PER_CHAR * chars)
        try:
            return self._template.render(
                {
                    **variables,
                    **self._variables,
                    "messages": [{**message, "content": content(message["content"])} for message in messages],
                    "tools": tools,
                    "documents": None,
                    "add_generation_prompt": opened,
                }
            )
        except TemplateRefusal:
            raise
        except Exception as error:  # noqa: BLE001 - a template can make Python raise anything
            raise TemplateFailure(f"the chat template fails: {_line(error)}") from None

    def _shows(self, messages: Sequence[ChatMessage], text: str, tools: bool = True) -> bool:
        try:
            return text in self.render(messages, opened=True, tools=[TOOL] if tools else None)
        except (TemplateRefusal, TemplateFailure):
            return False

    def _takes_parts(self) -> bool:
        problem = self._problem(parts=False)
        if problem is None or self._problem(parts=True) is not None:
            if isinstance(problem, TemplateFailure):
                raise problem
            return False  # a template that refuses this conversation may accept others
        return True

    def _problem(self, *, parts: bool) -> Exception | None:
        try:
            shown = MARKER in self._render([{"role": "user", "content": MARKER}], opened=True, parts=parts)
        except (TemplateRefusal, TemplateFailure) as error:
            return error
        return None if shown else TemplateFailure("the chat template does not show the text of a user's message")


def _chars(value: object) -> int:
    """The characters of all texts in a value."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(_chars(name) + _chars(inner) for name, inner in value.items())
    return sum(map(_chars, value)) if isinstance(value, list | tuple) else 1


def _takes_widths(pattern: str) -> bool:
    """True if a value may be the width of another one, as in `%*d` and `{:{}}`."""
    if "*" in pattern:
        return True
    try:
        return any("{" in (width or "") for _, _, width, _ in Formatter().parse(pattern))
    except ValueError:  # what stands before the fault is formatted all the same
        return True


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:SHOWN_CHARS]


class _Sandbox(ImmutableSandboxedEnvironment):
    """The environment that transformers has for chat templates, with a count of work in the thread that renders.

    Work is counted before it is done: steps of loops, calls and filters, and the sizes of the values that they handle.
    """

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, finalize=self._output, extensions=[_Generation, loopcontrols]
        )
        self._left = threading.local()
        del self.globals["lipsum"]
        self.globals |= {"raise_exception": _refuse, "strftime_now": _now}
        self.filters = {name: self._counted(name, call) for name, call in {**self.filters, "tojson": _json}.items()}
        self.filters[EACH] = self._each

    def allow(self, units: int) -> None:
        """Set the bound on the work that this thread does from now on."""
        self._left.units = units

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        method = getattr(obj, "__wrapped__", obj)  # the sandbox wraps str.format
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str | bytes):
            self._count(method.__name__, owner, [*args, *kwargs.values()])
        else:
            written = (
                isinstance(method, Macro) or isinstance(owner, dict | list) or method is dict or method is Namespace
            )
            self._spend(STEP + sum(self._length(value, written) for value in (*args, *kwargs.values())))
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, str) and operator == "%":
            self._count("format", left, [right])
            return super().call_binop(context, operator, left, right)
        sizes = self._length(left), self._length(right)
        if operator == "**":
            self._spend(sizes[1] ** 2)
        elif isinstance(left, bytes) and operator == "%":
            raise TooMuchWork("bytes cannot be a format")
        elif not isinstance(left, float | int) or not isinstance(right, float | int):
            self._spend(sizes[0] * sizes[1] if operator == "*" else sum(sizes))
        return super().call_binop(context, operator, left, right)

    def concat(self, pieces: Iterable[str]) -> str:
        return "".join(map(self._output, pieces))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _CountedNodes().visit(tree)
        tree.set_environment(self)
        return tree

    def _counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        first = int(hasattr(call, "jinja_pass_arg"))  # the context goes before the value

        @wraps(call)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self._count(name, args[first], [*args[first + 1 :], *kwargs.values()])
            return call(*args, **kwargs)

        return counted

    def _each(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            self._spend(STEP)
            yield value

    def _output(self, value: Any) -> Any:
        self._spend(self._size(value, written=True))
        return value

    def _count(self, name: str, value: Any, others: Sequence[Any]) -> None:
        """Count a filter or a method of a string: it may put the others between all of its characters."""
        formats = isinstance(value, str) and name.startswith("format")
        written = name in NO_WIDTH or (formats and not _takes_widths(value))
        sizes = 1 + sum(self._size(other, written) for other in others)
        if formats:
            sizes += sum(map(int, re.findall(r"\d{1,18}", value)))  # widths
        self._spend(STEP + (self._length if name in SHALLOW else self._size)(value, True) * sizes)

    def _size(self, value: Any, written: bool = False) -> int:
        """The length of a value, with all that is within it."""
        if isinstance(value, dict):
            value = [*value, *value.values()]
        length = self._length(value, written)
        if not isinstance(value, list | tuple):
            return length
        self._spend(STEP + length)  # before its elements, which may be the same large list over and over
        return length + sum(self._size(inner, written) for inner in value)

    def _length(self, value: Any, written: bool = False) -> int:
        """The characters or elements of a value; of a number its digits if it is only `written`, else how large it is,
        since it may be a width or a count."""
        if isinstance(value, int):
            if written:
                return 1 + value.bit_length() // 3
            if abs(value) > LARGEST:
                raise TooMuchWork("a number is too large")
            return abs(value)
        if isinstance(value, list | tuple | dict):
            return ELEMENT * len(value)
        return len(value) if isinstance(value, str | bytes | range) else 1

    def _spend(self, units: int) -> None:
        self._left.units -= units
        if self._left.units < 0:
            raise TooMuchWork("it does too much work")


class _CountedNodes(NodeTransformer):
    """Makes loops and joined strings calls of filters, which are counted."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802 - jinja2's name
        if node.recursive:
            raise TemplateSyntaxError("a recursive loop is not supported", node.lineno)
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, EACH, [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:  # noqa: N802
        self.generic_visit(node)
        return nodes.Filter(nodes.List(node.nodes), "join", [], [], None, None, lineno=node.lineno)


class _Generation(Extension):
    """`{% generation %}` marks an answer for training, and changes nothing here."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's

    def parse(self, parser: Parser) -> nodes.Scope:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _refuse(message: str) -> NoReturn:
    raise TemplateRefusal(message)
