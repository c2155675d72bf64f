"""What a cache policy sees of a request, and the window it answers with."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Reach(NamedTuple):
    """A request before a step, in absolute positions.

    `first` and `last` bound the live lanes; `end` is as far as the step may look (look-ahead included); everything
    before `frontier` is committed.
    """

    first: int
    last: int
    end: int
    frontier: int


class Window(NamedTuple):
    """A step computes `[start, end)` and sees `[0, visible)`; `refresh` if it computes anew what was cached. Without
    `drives` it only does that, and the lanes wait."""

    start: int
    end: int
    visible: int
    refresh: bool = False
    drives: bool = True

    @property
    def tokens(self) -> int:
        return self.end - self.start


class Progress(NamedTuple):
    """What a step brought a request: lanes that finished, forks, and the frontier behind it, in absolute positions."""

    finished: int
    forks: int
    frontier: int


class CachePolicy(Protocol):
    """One object per request."""

    @property
    def keeps_prompt(self) -> bool:
        """Whether the prompt is computed once only, before a canvas of masks."""
        ...

    def window(self, reach: Reach) -> Window:
        """What the next step computes. Changes nothing: the step may have to wait for budget."""
        ...

    def computed(self, window: Window, reach: Reach, progress: Progress) -> None:
        """`window` was computed, and brought `progress`."""
        ...
