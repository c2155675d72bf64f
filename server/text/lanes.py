"""The lane events of a step as text: for streams with lanes, traces and the terminal view."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from .tokenizer import Tokenizer


class LaneRow(msgspec.Struct, frozen=True, array_like=True):
    """A lane of a step, as `scheduler.LaneChange` has it; `tokens` are native int32."""

    id: int
    parent: int | None
    role: str
    start: int
    end: int
    fate: str
    tokens: bytes


class LaneStep(msgspec.Struct, frozen=True, array_like=True):
    """The lane events of a step as the engine sends them: `scheduler.LaneEvents` as plain data. `positions` and
    `tokens` are native int32."""

    step: int
    start: int
    end: int
    refresh: bool
    lanes: tuple[LaneRow, ...]
    positions: bytes
    tokens: bytes


@dataclass(frozen=True, slots=True)
class LaneView:
    """A lane `[start, end)` as the step found it, and its fate. `tokens` are the texts of its positions after the step,
    None where a position is still open."""

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

    Special tokens and end tokens have the text "". A token that is a part of a character has U+FFFD.
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


class Watcher:
    """Turns the lane events of one request into text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def look(self, events: LaneStep | None) -> LaneEvent | None:
        if events is None:
            return None
        lanes = tuple(
            LaneView(
                id=lane.id,
                parent=lane.parent,
                role=lane.role,
                start=lane.start,
                end=lane.end,
                fate=lane.fate,
                tokens=tuple(map(self._text, int32s(lane.tokens))),
            )
            for lane in events.lanes
        )
        committed = zip(int32s(events.positions), int32s(events.tokens), strict=True)
        commits = tuple(Commit(position, self._text(token) or "") for position, token in committed)
        return LaneEvent(events.step, (events.start, events.end), events.refresh, lanes, commits)

    def _text(self, token: int) -> str | None:
        if token == self._tokenizer.mask_id:
            return None
        # Not every checkpoint marks all of its end tokens as special.
        return "" if token in self._tokenizer.end_ids else self._tokenizer.pieces[token]


def int32s(data: bytes) -> list[int]:
    """The numbers of native int32."""
    return memoryview(data).cast("i").tolist()
