"""A request and its life: what was asked for, which state it is in, and what its canvas holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from .biases import NEUTRAL, Biasing, Preferences
from .boundaries import Nesting
from .caches import CachePolicy, Progress, Reach, Window
from .constraint import Constraint, Guide
from .contract import Bias, Ints, Row, Sampling, Scores, StepResult
from .decoders import Decoder
from .digest import View
from .frames import Computed, Frame, Recorder
from .geometry import Geometry
from .knobs import KnobError
from .lending import lend
from .policies.base import ABSENT, LaneFacts
from .prefixes import NAMELESS, Lease, Names
from .rows import Holding, Isolated, Layout, Together
from .scores import Scorebook
from .stability import Stability
from .tree import LaneTree
from .vocabulary import Vocabulary


class State(Enum):
    WAITING = "waiting"  # queued: holds nothing
    RUNNING = "running"  # holds a slot and pages, not in the step in flight
    STEPPING = "stepping"  # in the step in flight: the device reads and writes its pages
    LEAVING = "leaving"  # asked to end while stepping: freed by the commit
    FINISHED = "finished"


TRANSITIONS: dict[State, frozenset[State]] = {
    State.WAITING: frozenset({State.RUNNING, State.FINISHED}),
    State.RUNNING: frozenset({State.STEPPING, State.FINISHED}),
    State.STEPPING: frozenset({State.RUNNING, State.LEAVING, State.FINISHED}),
    State.LEAVING: frozenset({State.FINISHED}),
    State.FINISHED: frozenset(),
}


class Outcome(Enum):
    """How a request ended."""

    STOP = "stop"  # an end token, or a stop string
    LENGTH = "length"  # the canvas is full
    ABORTED = "aborted"  # the client left
    FAILED = "failed"  # its step raised, or its constraint leaves nothing to say


@dataclass(frozen=True, slots=True)
class Request:
    """What one answer needs. `prompt` are token ids; the canvas has `max_tokens` positions behind it, and ends in the
    token ids of `suffix`, if there are any: every step sees them.

    A `watched` request tells what each step did to its lanes. One with `ranks` tells each token's log-probability, and
    so many likeliest tokens at its place. Requests of a `family` differ in their sampling alone. A `constraint`, which
    no other request has, says what its text may be. Keys and values are shared only with requests of the same `salt`.
    """

    id: int
    prompt: Ints
    max_tokens: int
    decoder: Decoder
    sampling: Sampling = field(default_factory=Sampling)
    watched: bool = False
    preferences: Preferences = NEUTRAL
    ranks: int | None = None
    family: str | None = None
    constraint: Constraint | None = None
    suffix: Ints = field(default_factory=lambda: np.zeros(0, np.int32))
    salt: str = ""

    @property
    def length(self) -> int:
        """Positions in all."""
        return len(self.prompt) + self.max_tokens + len(self.suffix)


NO_END = 1 << 30
STABLE_STEPS = 2  # where a tokenizer has no boundaries, lanes fork at what so many steps have not changed


@dataclass(slots=True, eq=False)
class Sequence:
    """A request as the scheduler carries it. Canvas coordinates start at 0 behind the prompt."""

    request: Request
    tree: LaneTree
    cache: CachePolicy
    nesting: Nesting
    stability: Stability | None
    recorder: Recorder | None
    biasing: Biasing | None
    scorebook: Scorebook | None
    guide: Guide | None
    state: State = State.WAITING
    outcome: Outcome | None = None
    held: Holding = field(default_factory=lambda: Holding((), ()))
    names: Names = NAMELESS  # of the pages of its prompt that others may have too
    lease: Lease | None = None  # pages before those it holds, which others may have too
    frontier: int = 0  # canvas positions before it are committed
    end_at: int = NO_END  # first end token committed so far
    foreseen_end: int = NO_END  # first end token that the network is about to commit
    sent: int = 0  # canvas positions before it were handed out
    steps: int = 0
    computed_tokens: int = 0
    cached_tokens: int = 0  # positions of the prompt that others had computed
    refreshes: int = 0
    reused_refreshes: int = 0  # those that advanced the lanes as well, so cost no call of their own
    served_at: int = 0  # the scheduler's step that last carried it, or admitted it
    layout: Layout = field(init=False)

    @classmethod
    def of(cls, request: Request, vocabulary: Vocabulary, geometry: Geometry) -> Sequence:
        """Raises `KnobError` if the decoder, or the network, cannot do what else is asked."""
        if request.decoder.branches and len(request.suffix):
            raise KnobError("siblings", "isolated siblings see nothing behind their look-ahead: not with a suffix")
        if geometry.block and len(request.suffix):
            raise KnobError("suffix", "suffix is not for this model: no position sees what comes behind its block")
        policy, mask_id = request.decoder.policy, vocabulary.mask_id
        tree = LaneTree(np.full(request.max_tokens, mask_id, np.int32), mask_id, len(request.prompt), geometry)
        stable_steps = policy.stable_steps
        if not policy.boundary.known_to(vocabulary):
            stable_steps = stable_steps or STABLE_STEPS
        return cls(
            request=request,
            tree=tree,
            cache=request.decoder.cache(),
            nesting=Nesting.of(policy.boundary),
            stability=Stability(request.max_tokens, stable_steps) if stable_steps else None,
            recorder=Recorder(tree.canvas, mask_id) if request.watched else None,
            biasing=None if request.preferences == NEUTRAL else Biasing(request.preferences, vocabulary),
            scorebook=None if request.ranks is None else Scorebook(request.max_tokens, request.ranks),
            guide=None if request.constraint is None else Guide(request.constraint, request.decoder, vocabulary),
        )

    @property
    def id(self) -> int:
        return self.request.id

    @property
    def canvas(self) -> Ints:
        return self.tree.canvas

    @property
    def geometry(self) -> Geometry:
        return self.tree.geometry

    @property
    def prompt_length(self) -> int:
        return len(self.request.prompt)

    def hold(self, lease: Lease, held: Holding, page_size: int) -> None:
        """It is admitted, with what it needs on the device: its first lanes are born."""
        self.lease, self.held = lease, held
        if self.guide is not None:
            self.guide.begin(self)
        self.request.decoder.policy.open(self.tree)
        placed = held._replace(pages=(*lease.numbers, *held.pages))
        self.layout = Isolated(placed, self, page_size) if self.request.decoder.branches else Together(placed, self)

    def move(self, state: State) -> None:
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"request {self.id} cannot go from {self.state.value} to {state.value}")
        self.state = state

    def reach(self) -> Reach:
        """What the next step concerns, in absolute positions. With blocks they end where one does: the network has
        never seen a part of one."""
        prompt, live, grid = self.prompt_length, self.tree.live, self.geometry
        end = self.request.length if len(self.request.suffix) else prompt + self.drafts_end()
        return Reach(prompt + live[0].start, prompt + live[-1].end, grid.ceil(end), grid.floor(prompt + self.frontier))

    def drafts_end(self) -> int:
        """The end of the look-ahead behind all lanes, a canvas position."""
        last, lookahead = self.tree.live[-1].end, self.request.decoder.lookahead
        end = len(self.canvas) if lookahead is None else min(last + lookahead, self.tree.limit)
        return max(last, min(end, self.foreseen_end + 1))

    def window(self, reach: Reach) -> Window:
        """What the next step computes: in the first, what of the prompt nobody else has."""
        window = self.cache.window(reach)
        if self.lease is None or self.steps:
            return window
        return window._replace(start=max(window.start, self.lease.begin()))

    def view(self) -> View:
        """What the digest reads of it."""
        policy, live = self.request.decoder.policy, self.tree.live
        start, end = live[0].start, live[-1].end
        settled = None if self.stability is None else self.stability.settled(start, end)
        return View(live, self.canvas[start:end], settled, policy.boundary, self.nesting, policy.min_fill)

    def biases(self) -> tuple[Bias, ...]:
        """What the next step adds to its logits."""
        return () if self.biasing is None else self.biasing.of(self.prompt_length, self.canvas, self.end_at)

    def score(self, start: int, tokens: Ints, scores: Scores | None, part: slice) -> None:
        """Before `take`: `part` of a step's `scores` belongs to these `tokens`."""
        if self.scorebook is not None and scores is not None:
            held = self.canvas[start : start + len(tokens)]
            fresh = np.flatnonzero((held == self.tree.mask_id) & (tokens != held))
            self.scorebook.take(start + fresh, scores, part.start + fresh, self.steps)

    def take(self, start: int, tokens: Ints, proposals: Ints) -> None:
        """A step left `tokens` from canvas position `start` on, and proposed `proposals`."""
        part = self.canvas[start : start + len(tokens)]
        part[:] = tokens
        if self.stability is not None:
            self.stability.update(start, np.where(tokens == self.tree.mask_id, proposals, tokens))

    def follow(self, result: StepResult, part: slice) -> None:
        """`part` of a step's result is what it has proposed: a constraint decides what of it commits."""
        if self.guide is not None and part.stop > part.start:
            self.guide.take(self, result, part)

    def foresee(self, end: int | None) -> None:
        """The answer seems to end with the token at `end`, an absolute position."""
        self.foreseen_end = NO_END if end is None else end - self.prompt_length

    def advance(self, facts: list[LaneFacts], vocabulary: Vocabulary) -> Progress:
        """The canvas holds what a step brought; `facts` belong to the live lanes."""
        tree, started = self.tree, self.tree.live[0].start
        finished, forks = tree.finished, tree.forks
        if self.recorder is not None:
            self.recorder.before(tree.live)
        for lane, fact in zip(tree.live, facts, strict=True):
            lane.steps += 1
            lane.masks = fact.open
        self.request.decoder.policy.advance(tree, facts)
        self.layout.follow(self)
        self.end_at = min([self.end_at, *(fact.end_at for fact in facts if fact.end_at != ABSENT)])
        self.frontier = self._next_mask()
        if tree.live:
            self.nesting = self.nesting.after(self.canvas[started : tree.live[0].start], vocabulary)
        return Progress(tree.finished - finished, tree.forks - forks, self.prompt_length + self.frontier)

    def count(self, work: Work, progress: Progress) -> Frame | None:
        """A step is behind it, which brought `progress`; tells those who watch."""
        window, step, self.steps = work.window, self.steps, self.steps + 1
        frontier, known = work.reach.frontier, self.layout.known
        reach = work.reach._replace(frontier=min(frontier, known))
        self.cache.computed(window, reach, progress._replace(frontier=min(progress.frontier, known)))
        lend(self, work)
        self.refreshes += window.refresh
        self.reused_refreshes += window.refresh and window.drives
        self.computed_tokens += work.tokens
        if self.recorder is None:
            return None
        start, end = min(row.start for row in work.rows), max(row.end for row in work.rows)
        computed = Computed(start - self.prompt_length, end - self.prompt_length, window.refresh)
        return self.recorder.after(self.tree, step, computed)

    def hand_out(self) -> Ints:
        """The tokens that have become final since the last call, without end tokens."""
        upto = min(self.frontier, self.end_at)
        tokens = self.canvas[self.sent : upto]
        self.sent = max(self.sent, upto)
        return tokens

    def ending(self) -> Outcome | None:
        """How the request has ended, if it has."""
        guide = self.guide
        if guide is not None and guide.failed:
            return Outcome.FAILED
        stopped = self.end_at < self.frontier or (guide is not None and guide.finished)
        if self.tree.live and not (stopped and self.request.decoder.early_stop):
            return None
        cut = guide is not None and guide.closing
        return Outcome.STOP if stopped and not cut else Outcome.LENGTH

    def _next_mask(self) -> int:
        masked = self.canvas[self.frontier :] == self.tree.mask_id
        return self.frontier + int(masked.argmax()) if masked.any() else len(self.canvas)


@dataclass(frozen=True, slots=True)
class Work:
    """What the step in flight computes of a request, and what the commit needs to know of it.

    `open` counts the masks before the step, of a request that adapts to the load.
    """

    sequence: Sequence
    window: Window
    reach: Reach
    rows: tuple[Row, ...]
    open: int

    @property
    def tokens(self) -> int:
        return sum(row.tokens for row in self.rows)
