"""The parts of answers: what a request says about reading them, and the reading of one answer's deltas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ..engine.messages import AnswerOptions, Delta, Finish
from ..schema.responses import Finished, text_of
from ..structured.grammar import Wanted
from ..text.detokenizer import AnswerText, Detokenizer
from ..text.splitter import AnswerSplitter, CallPart, Piece, Reasoning
from ..text.tokenizer import Tokenizer


class Reader(Protocol):
    """Reads the deltas of one answer."""

    def read(self, delta: Delta) -> tuple[Sequence[Piece] | None, Delta]:
        """The parts that are certain with a delta, and the delta with their effect on its finish reason and usage. Of a
        diffusing answer the parts are all there are, or None if the delta says nothing of them."""

    def provisional(self, canvas: Sequence[int]) -> Sequence[Piece]:
        """The parts of an answer whose canvas has these tokens, and masks."""


class Reading(Protocol):
    """How the answers of a request are read: a new reader for each. `shown` are special tokens that have text in them,
    `wanted` is the grammar of its calls."""

    @property
    def shown(self) -> tuple[int, ...]: ...
    @property
    def wanted(self) -> Wanted | None: ...
    def reader(self, tokenizer: Tokenizer, options: AnswerOptions) -> Reader: ...


@dataclass(frozen=True, slots=True)
class SplitReading:
    """Answers that a splitter divides, a new one for each."""

    splitter: Callable[[], AnswerSplitter] = AnswerSplitter
    shown: tuple[int, ...] = ()
    wanted: Wanted | None = None

    def reader(self, tokenizer: Tokenizer, options: AnswerOptions) -> Reader:
        return PartReader(self, tokenizer, options)


class PartReader:
    def __init__(self, reading: SplitReading, tokenizer: Tokenizer, options: AnswerOptions) -> None:
        self._new_splitter = reading.splitter
        self._splitter = reading.splitter()
        self._shown = reading.shown
        self._tokenizer = tokenizer
        self._options = options
        self._token_ids: list[int] = []
        self._reasoning_tokens: int | None = None  # once the reasoning has ended

    def read(self, delta: Delta) -> tuple[Sequence[Piece], Delta]:
        splitter = self._splitter
        self._token_ids += delta.token_ids
        parts = splitter.feed(delta.text)
        finish = delta.finish
        if finish is not None:
            parts += splitter.end()
            if finish is Finish.STOP and splitter.calls and not splitter.broken:
                finish = Finish.TOOL_CALLS
        usage = delta.usage
        if usage is not None and (reasoning_tokens := self._count()):
            usage = replace(usage, reasoning_tokens=reasoning_tokens)
        return parts, replace(delta, finish=finish, usage=usage)

    def provisional(self, canvas: Sequence[int]) -> Sequence[Piece]:
        options, hidden = self._options, self._tokenizer.mask_id
        ends = {*self._tokenizer.end_ids, *options.stop_ids}
        answer = AnswerText(self._tokenizer, options.stop, ends, shown=self._shown, includes_stop=options.include_stop)
        text, _, _ = answer.feed([token for token in canvas if token != hidden])
        splitter = self._new_splitter()
        return [*splitter.feed(text + answer.flush()), *splitter.end()]

    def _count(self) -> int:
        """The tokens of the reasoning so far, its marks included."""
        chars = self._splitter.reasoning_chars
        if chars is None:
            return len(self._token_ids) if self._splitter.reasons else 0
        if self._reasoning_tokens is None:
            text = Detokenizer(self._tokenizer.backend, self._shown)
            self._reasoning_tokens, read = 0, 0
            while read < chars and self._reasoning_tokens < len(self._token_ids):
                read += len(text.feed([self._token_ids[self._reasoning_tokens]]))
                self._reasoning_tokens += 1
        return self._reasoning_tokens


class DiffusingReader:
    """Reads all parts anew with each delta: those of its canvas, and at the end the final ones."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._final: list[Piece] = []

    def read(self, delta: Delta) -> tuple[Sequence[Piece] | None, Delta]:
        parts, delta = self._reader.read(delta)
        self._final += parts or ()
        if delta.finish is not None:
            return self._final, delta
        return None if delta.canvas is None else self.provisional(delta.canvas), delta

    def provisional(self, canvas: Sequence[int]) -> Sequence[Piece]:
        return self._reader.provisional(canvas)


def joined(parts: Sequence[Piece], whole: Finished) -> Finished:
    """A complete choice of all its parts."""
    calls: dict[int, CallPart] = {}
    for part in parts:
        if isinstance(part, CallPart):
            begun = calls.get(part.index)
            calls[part.index] = part if begun is None else replace(begun, arguments=begun.arguments + part.arguments)
    return replace(
        whole,
        text=text_of(parts),
        reasoning="".join(part.text for part in parts if isinstance(part, Reasoning)),
        calls=tuple(calls.values()),
        parts=tuple(parts),
    )
