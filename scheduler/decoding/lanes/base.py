"""The interface of a lane policy, and the status of a lane after a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self

from ..boundaries import Boundary
from ..commit.base import StepView
from ..lane_tree import LaneTree
from ..params import Params, Values
from ..vocabulary import Vocabulary

ABSENT = -1


class LaneStatus(NamedTuple):
    """A lane after a step. Positions are on the canvas, `ABSENT` where there is none.

    `open` counts its masks; the lane may fork after `fork_at`; `end_at` is its first end token; `mark_at` its first
    token of the classes `LanePolicy.marks`.
    """

    open: int
    fork_at: int
    end_at: int
    mark_at: int = ABSENT


class LanePolicy(ABC):
    """Decides when lanes begin, fork, end and are cancelled. One file for each, and a row in `registry.DECODERS`.

    A policy is a frozen dataclass without state: one object serves all requests with the same parameters; state is in
    the tree. The defaults are those of a policy whose lanes never fork.
    """

    __slots__ = ()
    PARAMS: ClassVar[Mapping[str, Values]] = {}  # values of its own parameters
    TOKENS: ClassVar[Mapping[str, Mapping[str, int]]] = {}  # by parameter: the token classes that a value needs

    block_length: int
    serial: ClassVar[bool] = True  # has one lane at a time, on which no other builds before it ends
    slides: ClassVar[bool] = False  # its lane has no fixed length, and its start moves
    waits: ClassVar[bool] = False  # `advance` only acts if a lane is full, may fork, or has an end token or a mark
    reads_view: ClassVar[bool] = False  # cuts lanes by what a step has found, before the host decides what commits
    boundary: Boundary = Boundary.STABLE  # where lanes may fork
    min_fill: float = 1.0  # share of `[start, boundary]` that must be committed before a lane may fork there
    edges: bool = False  # a lane may fork at its first and last position, too
    marks: int = 0  # token classes whose first committed position it needs
    stable_steps: int = 0  # a lane may fork after leading proposals that so many steps have not changed; 0: never

    @classmethod
    def of(cls, params: Params) -> Self:
        """Take the fields from the parameters of the same name."""
        fields: Mapping[str, Any] = cls.__dict__["__dataclass_fields__"]
        return cls(**{name: params[name] for name in fields if name in params})

    def open(self, tree: LaneTree) -> None:
        """Put the first lane on an open canvas, or one on each of its gaps unless there is only one at a time."""
        tree.block_length = self.block_length
        tree.append(0 if self.serial else tree.open_gaps())

    def read_view(self, tree: LaneTree, view: StepView, vocabulary: Vocabulary) -> None:  # noqa: B027
        """A step has found `view`, with the lanes as they were. The last lane may be cut: only within lanes does
        anything commit. Only for a policy that `reads_view`."""

    def crowded(self, tree: LaneTree) -> bool:
        """Return whether no lane may fork before another one ends."""
        return False

    @abstractmethod
    def advance(self, tree: LaneTree, statuses: list[LaneStatus]) -> None:
        """Finish, fork and cancel lanes; `statuses` belong to `tree.live`, in order."""
