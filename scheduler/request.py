"""A request: what was asked for, which states it goes through, and how it can end."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from .contract import Ints, Sampling
from .decoding.registry import Decoder
from .grammar_guide import Constraint
from .logit_bias import NEUTRAL, Preferences


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
        """Positions that it needs on the device, replicas of its lanes included."""
        return self.length + self.decoder.replica_positions
