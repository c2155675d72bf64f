"""A request, its states, and what the scheduler reports of it: all that passes between engine and scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import numpy as np

from .contract import Doubles, Ints, Sampling
from .decoding.attention_pattern import AttentionPattern
from .decoding.compatibility import RequestFacts
from .decoding.lane_tree import Layout
from .decoding.registry import Decoder
from .decoding.vocabulary import Vocabulary
from .grammar_guide import Constraint
from .lane_events import LaneEvents
from .likelihood import Scoring
from .logit_bias import NEUTRAL, Preferences
from .logprobs import Scored
from .memory.pages import Limits


class State(Enum):
    __hash__ = object.__hash__  # Enum's own one is Python code, which each step would run several times

    WAITING = "waiting"  # queued, without slot and pages
    RUNNING = "running"  # has a slot and pages, not in a step in flight
    STEPPING = "stepping"  # in a step in flight: the device reads and writes its pages
    LEAVING = "leaving"  # ended while stepping: freed by the commit
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
    """All that one answer needs. `prompt` [tokens]; `max_tokens` positions of canvas follow it, and then the tokens of
    `suffix`, if there are any, which every step sees. A `template` [max_tokens] is the canvas before the first step,
    where some of it is given: masks and tokens, a mask first and last.

    With `watched`, each update has lane events. Each of a `diffusing` request has the whole canvas. With
    `ranks`, it has the log-probability of each token, and so many likeliest tokens at its position. Requests of one
    `share_group` differ in their sampling alone. A `constraint` belongs to one request and restricts its text. Requests
    share keys and values only if they have the same `cache_salt`.

    Clients take turns in proportion to their `weight` and wait for each other only; the requests of a `bundle` came
    together from one client. With `scoring` the request has no answer: its update has the tokens that it gives, and
    their scores. `candidates` are tokens that an answer with `ranks` and a `constraint` may begin with: updates have
    their log-probabilities at the first position.
    """

    id: int
    prompt: Ints
    max_tokens: int
    decoder: Decoder
    sampling: Sampling = field(default_factory=Sampling)
    watched: bool = False
    diffusing: bool = False
    preferences: Preferences = NEUTRAL
    ranks: int | None = None
    ranks_param: str = "logprobs"  # the parameter that gives them
    share_group: str | None = None
    constraint: Constraint | None = None
    suffix: Ints = field(default_factory=lambda: np.zeros(0, np.int32))
    template: Ints | None = None
    cache_salt: str = ""
    client: str = ""
    weight: float = 1.0
    bundle: str | None = None
    scoring: Scoring | None = None
    candidates: Ints = field(default_factory=lambda: np.zeros(0, np.int32))

    @property
    def length(self) -> int:
        """Positions in all."""
        return len(self.prompt) + self.max_tokens + len(self.suffix)

    @property
    def infill(self) -> str:
        """The parameter that gives tokens after open positions; empty if none does."""
        if self.template is not None:
            return "template"
        return "suffix" if len(self.suffix) else ""

    @property
    def room(self) -> int:
        """Positions on the device, replica rows of its lanes included."""
        return self.length + self.decoder.replica_positions

    def resources(self, limits: Limits, pattern: AttentionPattern) -> tuple[int, int]:
        """The slots and pages that it can ever need. It gets all of them when it is admitted."""
        branches = self.decoder.branches
        each = limits.pages_for(self._branch_tokens(pattern, limits.page_size - 1))
        each -= self.shared_pages(pattern, limits.page_size)
        room = self.room
        if self.decoder.denoiser is not None:
            room = len(self.prompt) + self.canvas_tokens(limits.max_model_len, pattern)
        return 1 + branches, limits.pages_for(room) + branches * each

    def shared_pages(self, pattern: AttentionPattern, page_size: int) -> int:
        """The pages of the prompt that all rows of branches read, and only the first forward writes."""
        return self._shared_tokens(pattern) // page_size

    def canvas_tokens(self, max_model_len: int, pattern: AttentionPattern) -> int:
        """Positions after the prompt where canvases begin with random tokens: whole canvases, as far as the context
        goes."""
        canvases = -(-self.max_tokens // pattern.canvas_length)
        return min(canvases * pattern.canvas_length, max_model_len - len(self.prompt))

    def facts(self, vocabulary: Vocabulary, limits: Limits, pattern: AttentionPattern, measured: bool) -> RequestFacts:
        """The facts by which `compatibility.refuse` decides. `measured`: the server knows the cost of its steps."""
        each = self._branch_tokens(pattern) - self._shared_tokens(pattern)
        tokens = pattern.ceil(self.length) + self.decoder.branches * each
        return RequestFacts(
            decoder=self.decoder,
            vocabulary=vocabulary,
            pattern=pattern,
            positions=self.length,
            max_positions=limits.max_model_len,
            prompt=len(self.prompt),
            infill=self.infill,
            grammar="" if self.constraint is None else self.constraint.name,
            logprobs="" if self.ranks is None else self.ranks_param,
            measured=measured,
            watched=self.watched,
            penalty=self.preferences.penalty,
            whole=not self._can_be_cut(limits, pattern),
            required=(*self.resources(limits, pattern), tokens),
            available=(limits.slots, limits.pages, limits.step_tokens),
        )

    def _can_be_cut(self, limits: Limits, pattern: AttentionPattern) -> bool:
        """Return whether its prompt may be computed by steps before the first forward, and its answer in rows that
        begin where settled positions end."""
        decoder = self.decoder
        alone = not decoder.branches and not decoder.replica_positions and decoder.layout is not Layout.ISOLATED
        return limits.cuts_rows(pattern) and alone and not self.infill and decoder.cache().keeps_prompt

    def _shared_tokens(self, pattern: AttentionPattern) -> int:
        """The positions of the prompt that only the first forward computes."""
        return max(0, len(self.prompt) - pattern.logit_shift) if self.decoder.shares_prompt else 0

    def _branch_tokens(self, pattern: AttentionPattern, before: int = 0) -> int:
        """The most positions of a branch's row, and those `before` it in its first page."""
        longest = self.decoder.branch_row + before + pattern.logit_shift
        return min(longest, pattern.ceil(self.length))


class RequestStats(NamedTuple):
    """The counters of one request so far. Positions count once for each forward that computes them."""

    prompt_tokens: int = 0  # 0 until its first step
    cached_tokens: int = 0  # of the prompt, computed for other requests
    computed_tokens: int = 0  # positions, in all layers
    forwards: int = 0  # chunks of the prompt are none
    lanes: int = 0
    forks: int = 0
    cancelled_lanes: int = 0
    refreshes: int = 0
    reused_refreshes: int = 0  # refreshes that advanced the lanes too, so they cost no forward of their own
    dropped_tokens: int = 0  # positions that went no further than the second layer's keys


class Failure(NamedTuple):
    """The reason why a request cannot be served: the parameter to blame, and a message for its client."""

    param: str
    message: str


class Update(NamedTuple):
    """The effect of one step on one request. There is none for a step that brought nothing, except the first.

    `tokens` [n] became final, in output order, end tokens excluded; `scores` are their log-probabilities, if the
    request has `ranks`. `outcome` is None while the request runs. A failed request has a `failure` if its client can
    do something about it. `lane_events` are there for a watched request whose step went well. `candidate_logprobs`
    [candidates] are those of the request's candidates at its first position, without the constraint, once they are
    known, or those of the chains that it scores, if it wants their sums. `canvas` is that of a diffusing request up to
    its last committed token, with masks.
    """

    request_id: int
    tokens: Ints
    outcome: Outcome | None
    stats: RequestStats
    failure: Failure | None = None
    lane_events: LaneEvents | None = None
    scores: Scored | None = None
    candidate_logprobs: Doubles | None = None
    canvas: Ints | None = None


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
