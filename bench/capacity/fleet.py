"""Replicas and a router before them, simulated round by round: who waits how long, at which rate of requests.

Each replica computes rounds one after another. A round gives each running request one forward, and computes waiting
prompts beside them, up to the replica's chunk. A request that arrives during a round joins the next one, if a slot is
free. The router sees each replica as it is: no report is late.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from .curve import Replica

KINDS = ("random", "round robin", "two choices", "least requests", "least positions")
LONGEST_ROUND = 1 << 20  # positions: more than all slots' prompts


@dataclass(slots=True)
class Request:
    """Times in seconds; `first_s` and `end_s` are 0 until they are known."""

    arrived_s: float
    prompt: int
    answer: int
    first_s: float = 0.0
    end_s: float = 0.0


@dataclass(slots=True)
class State:
    """The requests of one replica. Forwards are counted in rounds since its start, so that a round costs the same for
    any number of requests that neither begin nor end."""

    waiting: deque[Request] = field(default_factory=deque)
    prompts: deque[tuple[Request, int]] = field(default_factory=deque)  # with the positions that are left
    ends: list[tuple[int, int, Request]] = field(default_factory=list)  # a heap by the round of their last forward
    firsts: deque[tuple[int, Request]] = field(default_factory=deque)
    begun: list[Request] = field(default_factory=list)  # their prompts end with the round that is computed
    taken: int = 0  # slots
    rounds: int = 0
    busy: bool = False
    computed: int = 0  # prompt positions of the round that is computed


class Fleet:
    """`count` replicas and a router. `on_end` is called with each request that has ended."""

    def __init__(
        self, replica: Replica, count: int, kind: str, seed: int = 0, on_end: Callable[[Request], None] | None = None
    ) -> None:
        if kind not in KINDS:
            raise ValueError(f"no router {kind!r}: {', '.join(KINDS)}")
        self.now_s = 0.0
        self._replica, self._on_end = replica, on_end
        self._states = [State() for _ in range(count)]
        self._requests = np.zeros(count)  # that each replica has
        self._positions = np.zeros(count)  # of prompts to compute and tokens to commit
        self._random, self._turn, self._number = random.Random(seed), -1, 0
        self._choose = self._chooser(kind, count)
        self._round_ends: list[tuple[float, int]] = []
        self._seconds: dict[int, float] = {}

    def _chooser(self, kind: str, count: int) -> Callable[[], int]:
        draw, requests, positions = self._random.random, self._requests, self._positions

        def in_turn() -> int:
            self._turn = (self._turn + 1) % count
            return self._turn

        def of_two() -> int:
            one, two = int(draw() * count), int(draw() * count)
            return one if requests[one] <= requests[two] else two

        choosers: dict[str, Callable[[], int]] = {
            "random": lambda: int(draw() * count),
            "round robin": in_turn,
            "two choices": of_two,
            "least requests": lambda: int(requests.argmin()),
            "least positions": lambda: int(positions.argmin()),
        }
        return choosers[kind]

    @property
    def running(self) -> int:
        """Requests that wait or run."""
        return int(self._requests.sum())

    def arrive(self, request: Request) -> None:
        """Hand a request to a replica, at its time of arrival, which is not before `now_s`."""
        self.advance(request.arrived_s)
        at = self._choose()
        state = self._states[at]
        self._requests[at] += 1
        self._positions[at] += request.prompt + request.answer
        state.waiting.append(request)
        if not state.busy:
            self._begin(at, state)

    def advance(self, until_s: float) -> None:
        """Compute all rounds that end until then."""
        while self._round_ends and self._round_ends[0][0] <= until_s:
            self.now_s, at = heapq.heappop(self._round_ends)
            self._end(at, self._states[at])
        self.now_s = max(self.now_s, until_s)

    def advance_round(self) -> bool:
        """Compute until the next round ends; False if no request runs."""
        if self._round_ends:
            self.advance(self._round_ends[0][0])
            return True
        return False

    def finish(self) -> None:
        """Compute until no request runs."""
        while self.advance_round():
            pass

    def _begin(self, at: int, state: State) -> None:
        replica = self._replica
        while state.waiting and state.taken < replica.slots:
            request = state.waiting.popleft()
            state.prompts.append((request, request.prompt))
            state.taken += 1
        if not state.taken:
            state.busy = False
            return
        running = len(state.ends)
        state.busy, state.computed = True, 0
        if state.prompts:
            state.computed = self._take_prompts(state)
            if replica.chunk is None:  # its first forward is that of its prompt
                self._start_answers(state)
                running = len(state.ends)
        positions = round(running * replica.positions_per_forward) + state.computed
        taken_s = self._seconds.get(positions)
        if taken_s is None:
            taken_s = self._seconds[positions] = replica.round_s(positions)
        heapq.heappush(self._round_ends, (self.now_s + taken_s, at))

    def _take_prompts(self, state: State) -> int:
        """Return the positions of prompts that the next round computes, those that came first before the others."""
        computed, room = 0, self._replica.chunk or LONGEST_ROUND
        while state.prompts and room:
            request, left = state.prompts.popleft()
            part = min(left, room)
            computed, room = computed + part, room - part
            if part < left:
                state.prompts.appendleft((request, left - part))
            else:
                state.begun.append(request)
        return computed

    def _start_answers(self, state: State) -> None:
        for request in state.begun:
            self._number += 1
            forwards = self._replica.forwards(request.answer)
            heapq.heappush(state.ends, (state.rounds + forwards, self._number, request))
            state.firsts.append((state.rounds + self._replica.first_forwards, request))
        state.begun.clear()

    def _end(self, at: int, state: State) -> None:
        running = len(state.ends)
        state.rounds += 1
        self._positions[at] -= state.computed + running * self._replica.tokens_per_forward
        while state.firsts and state.firsts[0][0] <= state.rounds:
            request = state.firsts.popleft()[1]
            request.first_s = request.first_s or self.now_s
        while state.ends and state.ends[0][0] <= state.rounds:
            request = heapq.heappop(state.ends)[2]
            request.first_s, request.end_s = request.first_s or self.now_s, self.now_s
            state.taken -= 1
            self._requests[at] -= 1
            # The last forward of an answer commits what is left, which may be less than others.
            forwards = self._replica.forwards(request.answer)
            self._positions[at] += forwards * self._replica.tokens_per_forward - request.answer
            if self._on_end is not None:
                self._on_end(request)
        if state.begun:
            self._start_answers(state)
        self._begin(at, state)


@dataclass(frozen=True, slots=True)
class Lengths:
    """Ranges from which the tokens of prompts and answers are drawn, both ends included."""

    prompt: tuple[int, int]
    answer: tuple[int, int]


def poisson(rate_per_s: float, count: int, lengths: Lengths, seed: int) -> list[Request]:
    """Return `count` requests that arrive independently of each other. The same seed gives the same lengths and, but
    for the scale, the same times at any rate."""
    rng = np.random.default_rng(seed)
    times = (rng.exponential(1.0, count) / rate_per_s).cumsum().tolist()
    prompts = rng.integers(*lengths.prompt, count, endpoint=True).tolist()
    answers = rng.integers(*lengths.answer, count, endpoint=True).tolist()
    return [Request(*fields) for fields in zip(times, prompts, answers, strict=True)]


def percentile(values: Sequence[float], share: float) -> float:
    """Return a value of those given (nearest rank)."""
    return sorted(values)[math.ceil(share * len(values)) - 1]
