"""Turns committed ids into final text: never half a character, and never a stop string or a part of one.

The text does not depend on the chunks in which ids arrive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from tokenizers.decoders import DecodeStream

from .logprobs import Place
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    import tokenizers


class Detokenizer:
    """Decodes a growing list of ids. Special tokens have no text, except for those in `shown`, which are spelt out."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, shown: Collection[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._shown = {token: tokenizer.id_to_token(token) or "" for token in shown}
        self._begin()

    def _begin(self) -> None:
        self._stream = DecodeStream(skip_special_tokens=True)
        self._ids: list[int] = []
        self._emitted = 0

    def feed(self, ids: Sequence[int]) -> str:
        """Return the text that is now certain. The last character is kept back until it is complete."""
        if self._shown and not self._shown.keys().isdisjoint(ids):
            return "".join(map(self._feed_any, ids))
        return self._feed(ids)

    def _feed_any(self, token: int) -> str:
        if token not in self._shown:
            return self._feed([token])
        text = self.flush() + self._shown[token]
        self._begin()
        return text

    def _feed(self, ids: Sequence[int]) -> str:
        self._ids += ids
        steps = (self._stream.step(self._tokenizer, token) for token in ids)
        text = "".join(step for step in steps if step)
        self._emitted += len(text)
        return text

    def flush(self) -> str:
        """Return the rest. Bytes that form no character become U+FFFD, as when all ids are decoded at once."""
        text = self._tokenizer.decode(self._ids, skip_special_tokens=True)[self._emitted :]
        self._emitted += len(text)
        return text


class StopMatcher:
    """Finds the leftmost stop string in a text that arrives in pieces; of two at one place, the shorter.

    Only text that could still become a match is kept back. If it `includes` the match, the text ends with it.
    """

    def __init__(self, stops: Sequence[str], includes: bool = False) -> None:
        if not all(stops):
            raise ValueError("an empty stop string would match everywhere")
        self._stops = sorted(stops, key=len)
        self._longest = max(map(len, stops), default=0)
        self._includes = includes
        self._kept = ""
        self.found: str | None = None

    def feed(self, text: str) -> tuple[str, bool]:
        """Return the text to emit, and whether a stop string ends it."""
        return self._scan(self._kept + text, ended=False)

    def flush(self) -> tuple[str, bool]:
        """Return the rest at the end of the text, where no match can grow longer."""
        return self._scan(self._kept, ended=True)

    def _scan(self, text: str, ended: bool) -> tuple[str, bool]:
        self._kept = ""
        if not self._stops:
            return text, False
        for start in range(len(text)):
            self.found = next((stop for stop in self._stops if text.startswith(stop, start)), None)
            if self.found is not None:
                return text[: start + len(self.found) * self._includes], True
            if not ended and len(text) - start < self._longest and self._may_match(text[start:]):
                self._kept = text[start:]
                return text[:start], False
        return text, False

    def _may_match(self, tail: str) -> bool:
        return any(stop.startswith(tail) for stop in self._stops)


class Places:
    """The place of each token's text, once it is complete. Tokens that make one character share it."""

    def __init__(self) -> None:
        self._known: deque[Place] = deque()
        self._chars = 0
        self._waiting = 0  # tokens without text so far

    def add(self, text: str) -> None:
        """Add one token, with the text that it made certain."""
        self._waiting += 1
        if text:
            self.close(text)

    def close(self, text: str = "") -> None:
        """Give `text` to all tokens that still have no place."""
        place = Place(self._chars, self._chars + len(text))
        self._known += [place] * self._waiting
        self._waiting, self._chars = 0, place.end

    def take(self, chars: int) -> list[Place]:
        """Return and remove the places of the next tokens whose text ends within the first `chars` characters."""
        taken = []
        while self._known and self._known[0].end <= chars:
            taken.append(self._known.popleft())
        return taken


class AnswerText:
    """The text of one answer, made from its ids.

    `stops` end it before their first match, or after it if it `includes_stop`; `stop_ids` before the first such token.
    With `placed` it records the place of each token's text. Special tokens in `shown` have text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Sequence[str] = (),
        stop_ids: Collection[int] = (),
        placed: bool = False,
        shown: Collection[int] = (),
        includes_stop: bool = False,
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer.backend, shown)
        self._matcher = StopMatcher(stops, includes_stop)
        self._stop_ids = stop_ids
        self._places = Places() if placed else None
        self._stepwise = bool(stops) or placed
        self._emitted = 0
        self._stopped = False

    def take_places(self) -> list[Place]:
        """Return the places of further tokens whose text has been emitted completely."""
        return [] if self._places is None else self._places.take(self._emitted)

    @property
    def stopped(self) -> bool:
        """True once a stop string or a stop token has ended the text."""
        return self._stopped

    @property
    def stop(self) -> str | None:
        """The stop string that has ended the text."""
        return self._matcher.found

    def feed(self, ids: Sequence[int]) -> tuple[str, int, bool]:
        """Return the text to emit, how many of `ids` the answer has used, and whether a stop has ended it."""
        end = next((at for at, token in enumerate(ids) if token in self._stop_ids), len(ids))
        text, used, stopped = self._feed(ids[:end])
        self._emitted += len(text)
        if stopped or end == len(ids):
            return text, used, stopped
        text += self.flush()
        self._stopped = True
        return text, used, True

    def flush(self) -> str:
        """Return the rest of an answer that ended without a stop. It may contain a stop string: see `stopped`."""
        if self._stopped:
            return ""
        rest = self._detokenizer.flush()
        if self._places is not None:
            self._places.close(rest)
        before, self._stopped = self._matcher.feed(rest)
        if not self._stopped:
            rest, self._stopped = self._matcher.flush()
            before += rest
        self._emitted += len(before)
        return before

    def _feed(self, ids: Sequence[int]) -> tuple[str, int, bool]:
        if self._stopped:
            return "", 0, True
        if not self._stepwise:
            return self._detokenizer.feed(ids), len(ids), False
        emitted: list[str] = []
        # One by one, so that the count up to a match does not depend on how ids arrive.
        for used, token in enumerate(ids, start=1):
            certain = self._detokenizer.feed([token])
            if self._places is not None:
                self._places.add(certain)
            text, self._stopped = self._matcher.feed(certain)
            emitted.append(text)
            if self._stopped:
                return "".join(emitted), used, True
        return "".join(emitted), len(ids), False
