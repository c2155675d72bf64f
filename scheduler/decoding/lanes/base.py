"""What a lane policy is told after a step, and what it must answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from ..boundaries import Boundary
from ..commit.base import StepView
from ..lane_tree import LaneTree
from ..params import ParamError
from ..vocabulary import Vocabulary

ABSENT = -1


def require_token(vocabulary: Vocabulary, knob: str, chosen: str, kinds: Mapping[str, int]) -> None:
    """Raises `ParamError` unless the vocabulary has a token of the classes that `kinds` has for the value `chosen`."""
    if vocabulary.has(kinds[chosen]):
        return
    others = [repr(each) for each, classes in kinds.items() if vocabulary.has(classes)]
    instead = f"give {' or '.join(others)}" if others else "use another decoder"
    raise ParamError(knob, f"{knob} {chosen!r} needs a token that this model's vocabulary does not have: {instead}")


class LaneStatus(NamedTuple):
    """What a step left in a lane. Positions are canvas positions, `ABSENT` where there is none.

    `open` counts its masks; `fork_at` is the last position behind which it may fork; `end_at` its first end token;
    `mark_at` its first token of the classes `LanePolicy.marks`.
    """

    open: int
    fork_at: int
    end_at: int
    mark_at: int = ABSENT


class LanePolicy(Protocol):
    """Stateless: one object serves all requests with the same knobs; state is in the tree."""

    @property
    def min_fill(self) -> float:
        """Share of `[start, boundary]` that must be committed before a lane may fork there."""
        ...

    @property
    def boundary(self) -> Boundary:
        """Where lanes may fork."""
        ...

    @property
    def stable_steps(self) -> int:
        """After so many steps without a change in its leading proposals a lane may fork anywhere; 0: never."""
        ...

    @property
    def serial(self) -> bool:
        """Whether it has one lane at a time, which nothing else builds upon before it ends."""
        ...

    @property
    def reads_view(self) -> bool:
        """Whether it must see what a step has found before any of it commits: then the host decides what does."""
        ...

    @property
    def marks(self) -> int:
        """Classes of tokens of which it must know where they have committed; 0: none."""
        ...

    def require(self, vocabulary: Vocabulary) -> None:
        """Raises `ParamError` for a vocabulary without a token that it cannot do without."""
        ...

    def open(self, tree: LaneTree) -> None:
        """Put the first lanes on an empty canvas, with blocks as long as the tree says, if it does."""
        ...

    def read_view(self, tree: LaneTree, view: StepView, vocabulary: Vocabulary) -> None:
        """A step has found `view`, whose parts are the lanes as the step found them. The last one
        may be cut: only within lanes will it commit. Asked only of a policy that `looks`."""
        ...

    def advance(self, tree: LaneTree, facts: list[LaneStatus]) -> None:
        """Finish, fork and cancel lanes; `facts` belong to `tree.live`, in order."""
        ...


class Plain:
    """What most policies answer: lanes' facts are enough for them, and one token is as good as another."""

    __slots__ = ()
    reads_view = False

    @property
    def marks(self) -> int:
        return 0

    def require(self, vocabulary: Vocabulary) -> None:
        pass

    def read_view(self, tree: LaneTree, view: StepView, vocabulary: Vocabulary) -> None:
        pass


class Unforked(Plain):
    """What policies answer whose lanes never fork: they know no boundary, and no proposals settle."""

    __slots__ = ()
    serial = True
    min_fill = 1.0
    boundary = Boundary.STABLE
    stable_steps = 0
