"""The parts of a chat's answers: what a request says about reading them, and the reading of one answer's deltas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..engine.messages import Delta, Finish
from ..schema.responses import Finished
from ..structured.grammar import Wanted
from ..text.detokenizer import Detokenizer
from ..text.splitter import AnswerSplitter, CallPart, Piece, Reasoning, Text
from ..text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Reading:
    """How the answers of a request are read: a new splitter for each, and the special tokens that have text in them.
    `wanted` is the grammar of its calls."""

    splitter: Callable[[], AnswerSplitter]
    shown: tuple[int, ...]
    wanted: Wanted | None = None


class PartReader:
    """Reads the deltas of one answer."""

    def __init__(self, reading: Reading, tokenizer: Tokenizer) -> None:
        self._splitter = reading.splitter()
        self._shown = reading.shown
        self._tokenizer = tokenizer
        self._token_ids: list[int] = []
        self._reasoning_tokens: int | None = None  # once the reasoning has ended

    def read(self, delta: Delta) -> tuple[list[Piece], Delta]:
        """The parts that are certain with a delta, and the delta with their effect on its finish reason and usage."""
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


def joined(parts: Sequence[Piece], whole: Finished) -> Finished:
    """A complete choice of all its parts."""
    calls: dict[int, CallPart] = {}
    for part in parts:
        if isinstance(part, CallPart):
            begun = calls.get(part.index)
            calls[part.index] = part if begun is None else replace(begun, arguments=begun.arguments + part.arguments)
    return replace(
        whole,
        text="".join(part.spaced for part in parts if isinstance(part, Text)),
        reasoning="".join(part.text for part in parts if isinstance(part, Reasoning)),
        calls=tuple(calls.values()),
        parts=tuple(parts),
    )
