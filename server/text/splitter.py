"""Splits an answer's text, which comes in pieces, into the model's reasoning, its calls of tools, and the rest.

What adds up from all pieces does not depend on how the text was cut. White space next to reasoning and to calls is
left out. Text that looks like a call and is none stays text.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from .reasoning import ReasoningFormat
from .tool_calls import CallReader, ToolFormat


@dataclass(frozen=True, slots=True)
class Text:
    """Text at a place in the answer, in characters. A call stands between it and the text before it if it is
    `after_call`."""

    text: str
    at: int = field(default=0, compare=False)
    after_call: bool = field(default=False, compare=False)

    @property
    def spaced(self) -> str:
        """The text where all texts of an answer are put together."""
        return "\n" * self.after_call + self.text


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class CallPart:
    """More of the call with this number: its `id` and `name` first, then pieces of its `arguments`."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


Piece = Text | Reasoning | CallPart


@dataclass(frozen=True, slots=True)
class CallRules:
    """How calls are read: their form, the names of the tools, the most calls of an answer. With `early`, a grammar
    writes them, so that their arguments can be sent as they come."""

    form: ToolFormat
    names: Collection[str]
    most: int | None = None
    early: bool = False


class AnswerSplitter:
    """The splitter of one answer. With `inside`, it begins in the middle of the reasoning, which the prompt opened."""

    def __init__(
        self, reasoning: ReasoningFormat | None = None, inside: bool = False, calls: CallRules | None = None
    ) -> None:
        self.calls = 0
        self.broken = False  # the last call is not whole
        self.reasoning_chars: int | None = None  # of the text, up to the end of the reasoning, once that is known
        self._form = reasoning
        self._rules = calls
        self._rest = ""
        self._taken = 0  # characters before the rest
        self._space = ""  # before the call that is being read
        self._after_mark = inside  # white space that follows is left out
        self._said = False  # text
        self._apart = False  # a call stands between the text so far and what follows
        self._may_call = True  # here, without a marker
        self._reader: CallReader | None = None
        self._sent: tuple[bool, int] = (False, 0)  # of the call that is being read: its name, and so many characters
        self._id = ""
        self._parts: list[Piece] = []
        self._step: Callable[[bool], bool] = self._text
        if reasoning is not None:
            self._step = self._reasoning if inside else self._start

    @property
    def reasons(self) -> bool:
        """True within the reasoning."""
        return self._step == self._reasoning

    def feed(self, text: str) -> list[Piece]:
        """The parts that are certain with this text."""
        self._rest += text
        return self._run(ended=False)

    def end(self) -> list[Piece]:
        """The rest, once the text has ended."""
        return self._run(ended=True)

    def _run(self, ended: bool) -> list[Piece]:
        while self._step(ended):
            pass
        parts, self._parts = self._parts, []
        return parts

    # Each step returns True if another one follows on the same text.

    def _start(self, ended: bool) -> bool:
        assert self._form is not None
        begun = self._rest.lstrip()
        if begun.startswith(self._form.open):
            self._skip(len(self._rest) - len(begun) + len(self._form.open))
            self._step, self._after_mark = self._reasoning, True
            return True
        if not ended and self._form.open.startswith(begun):
            return False
        self._step = self._text
        return True

    def _reasoning(self, ended: bool) -> bool:
        assert self._form is not None
        self._drop_space()
        at = self._rest.find(self._form.close)
        over = at >= 0 or ended
        thought = self._rest[:at] if at >= 0 else self._rest
        size = len(thought.rstrip()) if over else _certain(self._rest, self._form.close)
        if size:
            self._parts.append(Reasoning(self._rest[:size]))
        self._skip(at + len(self._form.close) if at >= 0 else len(self._rest) if ended else size)
        if over:
            self.reasoning_chars = self._taken
            self._step, self._after_mark = self._text, True
        return over and at >= 0

    def _text(self, ended: bool) -> bool:
        self._drop_space()
        rules, size = self._rules, len(self._rest)
        if rules is not None and rules.form.open:
            at = self._rest.find(rules.form.open)
            if at >= 0:
                return self._begin_call(at)
            size = size if ended else _certain(self._rest, rules.form.open)
        elif rules is not None and self._may_call:
            begun = self._rest.lstrip(" \t\r\n;" if self.calls else " \t\r\n")
            if begun.startswith("{"):
                return self._begin_call(size - len(begun))
            if not begun and not ended:
                return False
            self._may_call = False
        self._say(size)
        return False

    def _begin_call(self, at: int) -> bool:
        assert self._rules is not None
        size = len(self._rest[:at].rstrip(" \t\r\n;" if self.calls and not self._rules.form.open else None))
        self._say(size)
        self._space = self._rest[: at - size]
        self._skip(at - size)
        self._reader = CallReader(self._rules.form, self._rules.names, self._rules.early)
        self._sent = False, 0
        self._step = self._call
        return True

    def _call(self, ended: bool) -> bool:
        reader, rules = self._reader, self._rules
        assert reader is not None
        assert rules is not None
        found = reader.read(self._rest, ended)
        wanted = rules.most is None or self.calls < rules.most
        if reader.name and wanted:
            self._send(reader)
        if found is None:
            return False
        self._step, self._space = self._text, self._space if not reader.name else ""
        if not reader.name:  # no call: its marker is text, and what follows may have one
            self._may_call = False
            self._rest = self._space + self._rest
            self._taken -= len(self._space)
            self._say(len(self._space) + len(rules.form.open))
            return True
        self.calls += wanted
        self.broken = wanted and not reader.complete
        self._skip(reader.end)
        self._after_mark = self._may_call = True
        self._apart = self._said
        return True

    def _send(self, reader: CallReader) -> None:
        named, chars = self._sent
        if not named:
            self._id = f"call_{secrets.token_hex(12)}"
            self._parts.append(CallPart(self.calls, self._id, reader.name))
        if len(reader.arguments) > chars:
            self._parts.append(CallPart(self.calls, arguments=reader.arguments[chars:]))
        self._sent = True, len(reader.arguments)

    def _say(self, size: int) -> None:
        """Emit so many characters as text."""
        if size:
            self._parts.append(Text(self._rest[:size], self._taken, self._apart))
            self._said, self._apart = True, False
            self._skip(size)

    def _skip(self, size: int) -> None:
        self._taken += size
        self._rest = self._rest[size:]

    def _drop_space(self) -> None:
        if self._after_mark:
            self._skip(len(self._rest) - len(self._rest.lstrip()))
            self._after_mark = not self._rest


def _certain(text: str, marker: str) -> int:
    """The characters before white space and the beginning of a marker at the end of a text."""
    size = next((size for size in range(min(len(marker) - 1, len(text)), 0, -1) if marker.startswith(text[-size:])), 0)
    return len(text[: len(text) - size].rstrip())
