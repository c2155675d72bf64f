"""The scheduler: `plan` chooses what a step computes, `commit` takes in what it brought.

Requests enter first come, first served, once a slot and all the pages they can ever need are free: nothing is ever
preempted, since recomputing keys and values would change an answer. Whoever has waited longest goes first in a step.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from operator import attrgetter

from .contract import Placement, StepPlan, StepResult
from .decoding.attention_pattern import PLAIN, AttentionPattern
from .decoding.cache import Progress
from .decoding.lane_tree import Role
from .decoding.lanes.base import LaneStatus
from .decoding.params import ParamError
from .decoding.vocabulary import END, Vocabulary
from .end_prediction import first_predicted_ends
from .lane_events import LaneEvents
from .lane_status import lane_statuses
from .layout.packed import Holding
from .memory.lending import block_hashes, may_begin
from .memory.pages import Limits, Pool
from .memory.prefix_cache import PrefixCache
from .memory.requirements import check_branches, needs
from .request import Ended, Load, Outcome, Request, State, Update
from .sequence import Sequence
from .step_cost import Budget, Halving
from .work import FAULT, PlannedRequest, take_in


class QueueFull(Exception):
    """As many requests wait as the limits allow."""


class Scheduler:
    def __init__(
        self,
        limits: Limits,
        vocabulary: Vocabulary,
        budget: Budget | None = None,
        halving: Halving | None = None,
        pattern: AttentionPattern = PLAIN,
    ) -> None:
        """`budget` is for requests with block_length 'auto'; with `halving` two steps may be in flight. Raises
        `ValueError` for limits that do not suit the network's `pattern`."""
        self.limits = limits.checked(pattern)
        self.budget, self.halving = budget, halving
        self.slots, self.pages = Pool(limits.slots), Pool(limits.pages)
        self._prefixes = PrefixCache(self.pages, limits.page_size, limits.prefix_sharing)
        self.waiting, self.running = dict[int, Sequence](), dict[int, Sequence]()
        self._vocabulary, self.pattern, self._step = vocabulary, pattern, 0
        self._flights: deque[list[PlannedRequest]] = deque()  # the works of each step in flight
        self._lost: list[Update] = []  # of requests that ended because they could not be planned

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    @property
    def pages_kept(self) -> int:
        """Pages that no request reads, kept for one that begins with their tokens."""
        return self._prefixes.idle

    @property
    def pages_used(self) -> int:
        return self.pages.held - self.pages_kept

    def add(self, request: Request) -> None:
        """Queue a request. Raises `QueueFull`, `ParamError` and `ValueError` if it can never fit."""
        request.require_room(self.limits.max_model_len)
        if len(request.prompt) < self.pattern.logit_shift:
            raise ValueError("this network predicts each token at the one before it: a prompt is needed")
        sequence = Sequence.of(request, self._vocabulary, self.pattern)
        if request.decoder.adaptive and self.budget is None:
            raise ParamError("block_length", "block_length 'auto' needs a server that has measured its steps")
        check_branches(request, self.limits, self.pattern)
        sequence.names = block_hashes(sequence, self._prefixes)
        self.waiting[sequence.id] = sequence
        if len(self.waiting) > self.limits.max_queue:
            self._admit()  # for whom there are slots and pages does not wait for the next plan to have them
        if len(self.waiting) > self.limits.max_queue:
            del self.waiting[sequence.id]
            raise QueueFull(f"the queue is full: {len(self.waiting)} of {self.limits.max_queue} requests wait")

    def end(self, request_id: int, outcome: Outcome) -> Ended | None:
        """End a request. Its slots and pages are free now, or at the commit of the step that carries it. None if it has
        ended before, or is about to."""
        sequence = self.waiting.get(request_id) or self.running.get(request_id)
        if sequence is None or sequence.state is State.LEAVING:
            return None
        ended = Ended(sequence.state, sequence.stats)
        self._end(sequence, outcome)
        return ended

    def load(self) -> Load:
        lanes = [lane.role for sequence in self.running.values() for lane in sequence.tree.live]
        refining = lanes.count(Role.REFINE)
        return Load(
            waiting=len(self.waiting),
            running=len(self.running),
            refine_lanes=refining,
            generate_lanes=len(lanes) - refining,
            pages_used=self.pages_used,
            pages_kept=self.pages_kept,
            pages_total=self.pages.size,
        )

    def _end(self, sequence: Sequence, outcome: Outcome) -> None:
        if sequence.state in (State.LEAVING, State.FINISHED):
            return
        sequence.outcome = outcome
        if sequence.state is State.STEPPING:
            sequence.move(State.LEAVING)
        else:
            self._release(sequence)

    def plan(self) -> StepPlan | None:
        """The next step, or None: nothing is left to do, or all of it waits for a step in flight."""
        if self._flights and self.halving is None:
            raise RuntimeError("the step in flight must be committed or failed first")
        works = self._works()
        placements: list[Placement] = []
        flight: list[PlannedRequest] = []
        room, share = self.limits.step_tokens, self._share(works)
        for work in works:
            sequence = work.sequence
            if share > 0 and work.tokens <= room and may_begin(sequence, flight):
                room -= work.tokens
                share -= work.tokens
                placements += sequence.layout.placements
                sequence.layout.placements.clear()
                sequence.move(State.STEPPING)
                flight.append(work)
        if not flight:
            return None
        self._flights.append(flight)
        return StepPlan(tuple(placements), tuple(row for work in flight for row in work.rows))

    def commit(self, result: StepResult) -> list[Update]:
        """Take in the oldest step in flight: lanes advance, final tokens are handed out, what ended is freed."""
        self._step += 1
        flight = self._flights[0]
        views, failed = take_in(flight, result)
        self._predict_ends(flight, result)
        self._learn(flight)
        facts = dict(zip(views, lane_statuses([*views.values()], self._vocabulary), strict=True))
        updates = []
        for work in flight:
            sequence = work.sequence
            sequence.served_at = self._step
            try:
                lost = sequence in failed
                updates.append(self._fail(sequence) if lost else self._update(sequence, self._advance(work, facts)))
            except Exception:
                logging.getLogger(__name__).exception(FAULT, sequence.id)
                updates.append(self._fail(sequence))
        self._flights.popleft()
        return updates

    def fail(self) -> list[Update]:
        """The oldest step in flight raised: end the requests it carried, and only those."""
        return [self._fail(work.sequence) for work in self._flights.popleft()]

    def lost(self) -> list[Update]:
        """The ends, since the last call, of requests that no step carries, because what plans for them failed."""
        lost, self._lost = self._lost, []
        return lost

    def check_integrity(self) -> None:
        """Raises `RuntimeError` if slots or pages leaked, or a state contradicts where a request is kept."""
        self.slots.check([slot for s in self.running.values() for slot in s.held.slots])
        own = [page for s in self.running.values() for page in s.held.pages]
        self.pages.check(own + self._prefixes.check(s.lease for s in self.running.values() if s.lease is not None))
        if any(s.state is not State.WAITING for s in self.waiting.values()):
            raise RuntimeError("a request in the queue is not waiting")
        if any(s.state in (State.WAITING, State.FINISHED) for s in self.running.values()):
            raise RuntimeError("a running request is waiting or finished")

    def _admit(self) -> None:
        while self.waiting:
            sequence = next(iter(self.waiting.values()))
            slots, pages = needs(sequence.request, self.limits, self.pattern)
            if slots > self.slots.free or not self._prefixes.fits(sequence.names, pages):
                break  # first come, first served: nobody overtakes
            del self.waiting[sequence.id]
            if self.budget is not None and sequence.request.decoder.adaptive:
                sequence.tree.block_length = self.budget.block_length(1 + len(self._adaptive()))
            lease, own = self._prefixes.take(sequence.names, pages, sequence.id)
            sequence.served_at = self._step
            sequence.move(State.RUNNING)
            self.running[sequence.id] = sequence
            try:
                sequence.hold(lease, Holding(self.slots.take(slots), own), self.limits.page_size)
            except Exception:
                logging.getLogger(__name__).exception(FAULT, sequence.id)
                self._lost.append(self._fail(sequence))

    def _share(self, works: list[PlannedRequest]) -> int:
        """Positions at which the next step has enough: all there are, or half of the work where two steps fly. The
        request that reaches it still goes, since one left out would lose a turn."""
        wanted = sum(work.tokens for work in works)
        if self.halving is None:
            return wanted
        flying = sum(work.tokens for flight in self._flights for work in flight)
        if self.halving.pays(wanted + flying):
            return -(-(wanted + flying) // 2)
        return 0 if self._flights else wanted

    def _works(self) -> list[PlannedRequest]:
        """What all that run and wait for no step compute next; whoever fails makes room for the next in the queue."""
        while True:
            works, lost = [], len(self._lost)
            self._admit()
            self._lengthen()
            free = [sequence for sequence in self.running.values() if sequence.state is State.RUNNING]
            for sequence in sorted(free, key=attrgetter("served_at", "id")):
                try:
                    works.append(self._work(sequence))
                except Exception:
                    logging.getLogger(__name__).exception(FAULT, sequence.id)
                    self._lost.append(self._fail(sequence))
            if lost == len(self._lost):
                return works

    def _fail(self, sequence: Sequence) -> Update:
        if sequence.state is State.FINISHED:  # it had ended, but what the commit would have told is lost
            sequence.outcome = Outcome.FAILED
        self._end(sequence, Outcome.FAILED)
        if sequence.state is State.LEAVING:
            self._release(sequence)
        return self._ended(sequence)

    def _lengthen(self) -> None:
        """Requests that adapt to the load get blocks as long as it allows."""
        adaptive = self._adaptive()
        if self.budget is not None and adaptive:
            length = self.budget.block_length(len(adaptive))
            for sequence in adaptive:
                sequence.tree.block_length = length

    def _adaptive(self) -> list[Sequence]:
        return [sequence for sequence in self.running.values() if sequence.request.decoder.adaptive]

    def _work(self, sequence: Sequence) -> PlannedRequest:
        reach = sequence.reach()
        window = sequence.window(reach)
        open_ = sequence.tree.masks(0, sequence.tree.limit) if sequence.request.decoder.adaptive else 0
        rows = sequence.layout.rows(sequence, window)
        return PlannedRequest(sequence, window, reach, rows, sum(row.tokens for row in rows), open_)

    def _advance(self, work: PlannedRequest, facts: Mapping[int, list[LaneStatus]]) -> LaneEvents | None:
        """A step is behind a request, and found `facts` of its lanes, by its id, if it drove them."""
        progress = Progress(0, 0, work.reach.frontier)
        if work.window.drives:
            progress = work.sequence.advance(facts[work.sequence.id], self._vocabulary)
        return work.sequence.count(work, progress)

    def _learn(self, flight: list[PlannedRequest]) -> None:
        """Tells the budget what a step brought the requests that adapt to the load."""
        adaptive = [work for work in flight if work.sequence.request.decoder.adaptive]
        if self.budget is not None and adaptive:
            commits = sum(work.open - work.sequence.tree.masks(0, work.sequence.tree.limit) for work in adaptive)
            self.budget.observe(len(adaptive), sum(work.tokens for work in adaptive), commits)

    def _predict_ends(self, flight: list[PlannedRequest], result: StepResult) -> None:
        """Tells each request where the network is about to end its answer: the first open position at which it
        proposes an end token with enough confidence."""
        ends = (self._vocabulary.classes[result.proposals] & END) != 0
        ends &= result.tokens == self._vocabulary.mask_id
        first = first_predicted_ends(flight, ends, result) if ends.any() else {}
        for work in flight:
            if work.window.drives:  # others have seen nothing new, alone or in company
                work.sequence.predict_end(first.get(work.sequence.id), work.window)

    def _update(self, sequence: Sequence, frame: LaneEvents | None) -> Update:
        if sequence.state is State.LEAVING:
            self._release(sequence)
            return self._ended(sequence)
        sequence.move(State.RUNNING)
        tokens, scores = sequence.hand_out()
        sequence.outcome = sequence.ending()
        if sequence.outcome is not None:
            self._release(sequence)
        failure = sequence.failure if sequence.outcome is Outcome.FAILED else None
        return Update(sequence.id, tokens, sequence.outcome, sequence.stats, failure, frame, scores)

    def _ended(self, sequence: Sequence) -> Update:
        """The end of a request, without what its last step brought."""
        failure = sequence.failure if sequence.outcome is Outcome.FAILED else None
        return Update(sequence.id, sequence.canvas[:0], sequence.outcome, sequence.stats, failure)

    def _release(self, sequence: Sequence) -> None:
        if sequence.state is State.WAITING:
            del self.waiting[sequence.id]
        else:
            del self.running[sequence.id]
            self.slots.give(sequence.held.slots)
            self.pages.give(sequence.held.pages)
            if sequence.lease is not None:
                sequence.lease.end()
        sequence.move(State.FINISHED)
