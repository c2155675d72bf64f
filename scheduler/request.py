"""A request, its states, and what the scheduler reports of it: all that passes between engine and scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import numpy as np

from .contract import Ints, Sampling
from .decoding.params import ParamError
from .decoding.resolve import Decoder
from .grammar_guide import Constraint
from .lane_events import LaneEvents
from .logit_bias import NEUTRAL, Preferences
from .logprobs import Scored


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
    FAILED = "failed"  # its step or its rule raised, or its constraint leaves nothing to say


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
    share_group: str | None = None
    constraint: Constraint | None = None
    suffix: Ints = field(default_factory=lambda: np.zeros(0, np.int32))
    cache_salt: str = ""

    @property
    def length(self) -> int:
        """Positions in all."""
        return len(self.prompt) + self.max_tokens + len(self.suffix)

    @property
    def room(self) -> int:
        """Positions that it needs on the device, shadows of its lanes included."""
        return self.length + self.decoder.replica_positions

    def require_scores(self) -> None:
        """Raises `ParamError` if it asks how likely its tokens were of a decoder that cannot tell."""
        if self.ranks is None or self.constraint is not None or self.decoder.scored:
            return
        what = "logprobs, best_of, or a suffix without max_tokens"
        name = self.decoder.name
        raise ParamError("decoder", f"decoder {name!r} cannot tell how likely a token was: not with {what}")

    def require_room(self, limit: int) -> None:
        """Raises `ValueError` if it has more than `limit` positions, `ParamError` if it does with its shadows."""
        if self.length > limit:
            raise ValueError(f"{self.length} tokens exceed max_model_len {limit}")
        if self.room > limit:
            name, shadows = self.decoder.name, self.decoder.replica_positions
            message = (
                f"decoder {name!r} needs room for {shadows} shadows behind {self.length} tokens, of {limit} in all"
            )
            raise ParamError("decoder", message + ": lower block_length or max_tokens")


class RequestStats(NamedTuple):
    """The counters of one request so far. Positions count once for each forward that computes them."""

    prompt_tokens: int = 0  # 0 until its first forward
    cached_tokens: int = 0  # of the prompt, computed for other requests
    computed_tokens: int = 0  # positions
    forwards: int = 0
    lanes: int = 0
    forks: int = 0
    cancelled_lanes: int = 0
    refreshes: int = 0
    reused_refreshes: int = 0  # refreshes that advanced the lanes too, so they cost no forward of their own


class Failure(NamedTuple):
    """The reason why a request cannot be served: the parameter to blame, and a message for its client."""

    param: str
    message: str


@dataclass(frozen=True, slots=True)
class Update:
    """The effect of one step on one request.

    `tokens` [n] became final, in output order, end tokens excluded; `scores` are their log-probabilities, if the
    request has `ranks`. `outcome` is None while the request runs. A failed request has a `failure` if its client can
    do something about it. `lane_events` are there for a watched request whose step went well.
    """

    request_id: int
    tokens: Ints
    outcome: Outcome | None
    stats: RequestStats
    failure: Failure | None = None
    lane_events: LaneEvents | None = None
    scores: Scored | None = None


class Ended(NamedTuple):
    """A request that was ended from outside: the state that it was in, and its counters."""

    state: State
    stats: RequestStats


class Load(NamedTuple):
    """Gauges of a scheduler. Kept pages belong to no request; their contents wait for a prompt that begins alike."""

    waiting: int
    running: int
    refine_lanes: int
    generate_lanes: int
    pages_used: int
    pages_kept: int
    pages_total: int
