"""Tells in text what one step did to an answer's lanes: for streams with lanes, traces and the terminal view."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from ...scheduler import LaneEvents


@dataclass(frozen=True, slots=True)
class LaneView:
    """A lane as the step found it, `[start, end)`, and what became of it; `tokens` are the texts of its positions
    behind the step, None where one is still open."""

    id: int
    parent: int | None
    role: str
    start: int
    end: int
    fate: str
    tokens: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Commit:
    position: int
    text: str


@dataclass(frozen=True, slots=True)
class LaneEvent:
    """One step of one answer, in canvas positions: `computed` is `[start, end)`, and the prompt is below 0.

    Special tokens, end tokens among them, have the text "". A token that holds a part of a character has U+FFFD.
    """

    step: int
    computed: tuple[int, int]
    refresh: bool
    lanes: tuple[LaneView, ...]
    commits: tuple[Commit, ...]

    @property
    def drafts(self) -> tuple[Commit, ...]:
        """Commits outside of all lanes."""
        return tuple(commit for commit in self.commits if self.lane_at(commit.position) is None)

    def lane_at(self, position: int) -> LaneView | None:
        return next((lane for lane in self.lanes if lane.start <= position < lane.end), None)

    def json(self) -> dict[str, Any]:
        return asdict(self)


class Tokens(Protocol):
    """What is needed of `text.Tokenizer`."""

    @property
    def pieces(self) -> Sequence[str]: ...

    @property
    def mask_id(self) -> int: ...

    @property
    def end_ids(self) -> Collection[int]: ...


class Watcher:
    """Makes events of a request's frames, one of each."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def look(self, frame: LaneEvents | None) -> LaneEvent | None:
        if frame is None:
            return None
        lanes = tuple(
            LaneView(
                id=lane.id,
                parent=lane.parent,
                role=lane.role.value,
                start=lane.start,
                end=lane.end,
                fate=lane.fate.value,
                tokens=tuple(map(self._text, lane.tokens.tolist())),
            )
            for lane in frame.lanes
        )
        committed = zip(frame.positions.tolist(), frame.tokens.tolist(), strict=True)
        commits = tuple(Commit(position, self._text(token) or "") for position, token in committed)
        return LaneEvent(frame.step, (frame.start, frame.end), frame.refresh, lanes, commits)

    def _text(self, token: int) -> str | None:
        if token == self._tokens.mask_id:
            return None
        # Not every checkpoint marks all tokens that end an answer as special.
        return "" if token in self._tokens.end_ids else self._tokens.pieces[token]
