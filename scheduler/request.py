"""A request and its life: what was asked for, which state it is in, and what its canvas holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from .caches import CachePolicy, Reach, Window
from .contract import Ints, Sampling
from .decoders import Decoder
from .policies.base import ABSENT, LaneFacts
from .tree import LaneTree


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
    FAILED = "failed"  # its step raised


@dataclass(frozen=True, slots=True)
class Request:
    """What one answer needs. `prompt` are token ids; the canvas has `max_tokens` positions behind it."""

    id: int
    prompt: Ints
    max_tokens: int
    decoder: Decoder
    sampling: Sampling = field(default_factory=Sampling)


NO_END = 1 << 30


@dataclass(slots=True, eq=False)
class Sequence:
    """A request as the scheduler carries it. Canvas coordinates start at 0 behind the prompt."""

    request: Request
    tree: LaneTree
    cache: CachePolicy
    canvas: Ints
    mask_id: int
    state: State = State.WAITING
    outcome: Outcome | None = None
    slot: int = -1
    pages: tuple[int, ...] = ()
    frontier: int = 0  # canvas positions before it are committed
    end_at: int = NO_END  # first end token committed so far
    sent: int = 0  # canvas positions before it were handed out
    steps: int = 0
    computed_tokens: int = 0
    refreshes: int = 0
    served_at: int = 0  # the scheduler's step that last carried it, or admitted it

    @classmethod
    def of(cls, request: Request, mask_id: int) -> Sequence:
        length = request.max_tokens
        return cls(
            request=request,
            tree=LaneTree(request.decoder.policy.open(length), length),
            cache=request.decoder.cache(),
            canvas=np.full(length, mask_id, np.int32),
            mask_id=mask_id,
        )

    @property
    def id(self) -> int:
        return self.request.id

    @property
    def prompt_length(self) -> int:
        return len(self.request.prompt)

    def move(self, state: State) -> None:
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"request {self.id} cannot go from {self.state.value} to {state.value}")
        self.state = state

    def reach(self) -> Reach:
        """What the next step concerns, in absolute positions."""
        prompt, live, lookahead = self.prompt_length, self.tree.live, self.request.decoder.lookahead
        last = live[-1].end
        end = len(self.canvas) if lookahead is None else min(last + lookahead, self.tree.limit)
        return Reach(prompt + live[0].start, prompt + last, prompt + end, prompt + self.frontier)

    def advance(self, facts: list[LaneFacts], window: Window, reach: Reach) -> None:
        """The canvas holds what a step over `window` brought; `facts` belong to the live lanes."""
        finished = self.tree.finished
        for lane in self.tree.live:
            lane.steps += 1
        self.request.decoder.policy.advance(self.tree, facts)
        self.cache.computed(window, reach, self.tree.finished - finished)
        self.refreshes += window.refresh
        self.computed_tokens += window.tokens
        self.steps += 1
        self.frontier = self._next_mask()
        self.end_at = min([self.end_at, *(fact.end_at for fact in facts if fact.end_at != ABSENT)])

    def hand_out(self) -> Ints:
        """The tokens that have become final since the last call, without end tokens."""
        upto = min(self.frontier, self.end_at)
        tokens = self.canvas[self.sent : upto]
        self.sent = max(self.sent, upto)
        return tokens

    def ending(self) -> Outcome | None:
        """How the request has ended, if it has."""
        stopped = self.end_at < self.frontier
        if self.tree.live and not (stopped and self.request.decoder.early_stop):
            return None
        return Outcome.STOP if stopped else Outcome.LENGTH

    def _next_mask(self) -> int:
        masked = self.canvas[self.frontier :] == self.mask_id
        return self.frontier + int(masked.argmax()) if masked.any() else len(self.canvas)
