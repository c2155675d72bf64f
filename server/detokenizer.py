"""Turns committed ids into final text: never half a character, and never a stop string or a part of one.

Whatever the chunks in which ids arrive, the text is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from tokenizers.decoders import DecodeStream

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class HasBackend(Protocol):
    """`text.Text`, or anything else with a tokenizer."""

    @property
    def backend(self) -> Tokenizer: ...


class Detokenizer:
    """Decodes a growing row of ids; special tokens have no text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._ids: list[int] = []
        self._emitted = 0

    def feed(self, ids: Sequence[int]) -> str:
        """The text that has become certain: the last character stays here until it is whole."""
        self._ids += ids
        steps = (self._stream.step(self._tokenizer, token) for token in ids)
        text = "".join(step for step in steps if step)
        self._emitted += len(text)
        return text

    def flush(self) -> str:
        """What `feed` still held. Bytes that are no character come as U+FFFD, as in a decode of all ids."""
        text = self._tokenizer.decode(self._ids, skip_special_tokens=True)[self._emitted :]
        self._emitted += len(text)
        return text


class StopMatcher:
    """Finds the leftmost stop string in a text that arrives in pieces; of two at one place, the shorter.

    What could still become a match is held back, and nothing else.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise ValueError("an empty stop string would match everywhere")
        self._stops = sorted(stops, key=len)
        self._longest = max(map(len, stops), default=0)
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """Text to emit, and whether a stop string has been found right behind it."""
        return self._scan(self._held + text, ended=False)

    def flush(self) -> tuple[str, bool]:
        """The text has ended: nothing can become a longer match any more."""
        return self._scan(self._held, ended=True)

    def _scan(self, text: str, ended: bool) -> tuple[str, bool]:
        self._held = ""
        if not self._stops:
            return text, False
        for start in range(len(text)):
            if any(text.startswith(stop, start) for stop in self._stops):
                return text[:start], True
            if not ended and len(text) - start < self._longest and self._may_match(text[start:]):
                self._held = text[start:]
                return text[:start], False
        return text, False

    def _may_match(self, tail: str) -> bool:
        return any(stop.startswith(tail) for stop in self._stops)


class AnswerText:
    """An answer's text, from its ids to what the client may read."""

    def __init__(self, text: HasBackend, stops: Sequence[str] = ()) -> None:
        self._detokenizer = Detokenizer(text.backend)
        self._matcher = StopMatcher(stops)
        self._stepwise = bool(stops)
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """Whether a stop string has ended the text, be it in `feed` or in `flush`."""
        return self._stopped

    def feed(self, ids: Sequence[int]) -> tuple[str, int, bool]:
        """Text to emit, how many of `ids` the answer has used, and whether a stop string has ended it."""
        if self._stopped:
            return "", 0, True
        if not self._stepwise:
            return self._detokenizer.feed(ids), len(ids), False
        emitted: list[str] = []
        # One by one, so that the count up to a match does not depend on how ids arrive.
        for used, token in enumerate(ids, start=1):
            text, self._stopped = self._matcher.feed(self._detokenizer.feed([token]))
            emitted.append(text)
            if self._stopped:
                return "".join(emitted), used, True
        return "".join(emitted), len(ids), False

    def flush(self) -> str:
        """The rest, once the answer has ended without a match in `feed`; look at `stopped` again."""
        if self._stopped:
            return ""
        before, self._stopped = self._matcher.feed(self._detokenizer.flush())
        if self._stopped:
            return before
        rest, self._stopped = self._matcher.flush()
        return before + rest
