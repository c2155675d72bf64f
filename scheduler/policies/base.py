"""What a lane policy is told after a step, and what it must answer."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from ..tree import Lane, LaneTree


class LaneFacts(NamedTuple):
    """What a step left in a lane. Positions are canvas positions, `ABSENT` where there is none.

    `fork_at` is the last valid delimiter with enough of the lane committed before it; `end_at` the first end token.
    """

    open: int
    fork_at: int
    open_to_fork: int
    end_at: int
    open_to_end: int


ABSENT = -1


class LanePolicy(Protocol):
    """Stateless: one object serves all requests with the same knobs; state is in the tree."""

    @property
    def min_fill(self) -> float:
        """Share of `[start, delimiter]` that must be committed before a lane may fork there; above 1: never."""
        ...

    def open(self, length: int) -> list[Lane]:
        """The lanes of an empty canvas of `length` masks."""
        ...

    def advance(self, tree: LaneTree, facts: list[LaneFacts]) -> None:
        """Finish, fork and cancel lanes; `facts` belong to `tree.live`, in order."""
        ...
