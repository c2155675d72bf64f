"""The scheduler: `plan` chooses what a step computes, `commit` takes in its result.

Requests enter once a slot and all the pages that they can ever need are free. Clients take turns; the requests of one
client keep their order. Nothing is ever preempted, since recomputed keys and values would change an answer. In a step,
whoever has waited longest goes first.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from collections.abc import Collection
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from .candidates import with_candidates, without
from .canvas_sequence import CanvasSequence
from .contract import Ints, Placement, Row, StepPlan, StepResult
from .decoding.attention_pattern import PLAIN, AttentionPattern
from .decoding.compatibility import refuse
from .decoding.lane_tree import LaneCounts
from .decoding.vocabulary import Vocabulary
from .host_rules import INTERRUPTS, Commits, RuleInput, decide
from .lane_events import LaneEvents
from .lane_status import EndSpan, LaneSnapshot, PredictedEnd, lane_statuses, predicted_ends, starts_of
from .layout import Holding
from .memory.pages import Limits, Pool
from .memory.prefix_cache import PrefixCache
from .prompt_room import PromptRoom, score_ends
from .request import Ended, Load, Outcome, Request, State, Update
from .scored_sequence import ScoredSequence
from .sequence import NO_END, PlannedRequest, Sequence, size_of
from .step_cost import Budget, Halving, Pacing, StepSize
from .turns import Turns

SHORT = 256  # positions of a step that a list is as fast for as numpy
# A rule, a policy, a cache or a grammar raised.
FAULT = "request %d ends: what decides for it failed"
WAITING, RUNNING, STEPPING, LEAVING, FINISHED = State  # looked up once: each access runs Python code


class QueueFull(Exception):
    """The queue is full, and the client has its part of it."""


class StepInFlight(NamedTuple):
    """A step between its plan and its commit."""

    plan: StepPlan  # without candidates
    requests: list[PlannedRequest]
    candidates: dict[int, slice]  # by request, the places of the device's result that score its candidates

    def edges(self, result: StepResult) -> list[int]:
        """[requests + 1] where the positions of each request begin in the result, and where the last ones end."""
        if len(self.requests) == 1:
            return [0, len(result.tokens)]
        columns = self.plan.columns
        span_starts = starts_of(columns.span_ends - columns.span_starts)
        edges: list[int] = span_starts[starts_of(columns.span_counts)].tolist()
        if len(edges) == len(self.requests) + 1:  # each has one row
            return edges
        return [edges[rows] for rows in accumulate([len(planned.rows) for planned in self.requests], initial=0)]


class Scheduler:
    def __init__(
        self,
        limits: Limits,
        vocabulary: Vocabulary,
        budget: Budget | None = None,
        halving: Halving | None = None,
        pattern: AttentionPattern = PLAIN,
        pacing: Pacing | None = None,
    ) -> None:
        """`budget` chooses for requests with block_length 'auto'. With `halving` two steps may be in flight. With
        `pacing` the positions of long prompts in a step follow their cost, up to the limit. Raises `ValueError` for
        limits that do not suit the network's `pattern`."""
        self.limits = limits.checked(pattern)
        self.budget, self.halving, self.pacing = budget, halving, pacing
        self.slots, self.pages = Pool(limits.slots), Pool(limits.pages)
        self.waiting, self.running = dict[int, Sequence](), dict[int, Sequence]()
        self.pattern = pattern
        self._lanes = LaneCounts()
        self._turns, self._prompts = Turns(), PromptRoom(self.limits, pattern)
        self._prefixes = PrefixCache(self.pages, limits.page_size, limits.prefix_sharing)
        self._vocabulary, self._step = vocabulary, 0
        self._pages_together = dict[tuple[int, ...], frozenset[int]]()  # the pages of requests that run together
        self._in_flight: deque[StepInFlight] = deque()  # oldest first
        self._lost: list[Update] = []  # ends of requests that could not be planned

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    @property
    def positions_in_flight(self) -> int:
        """Canvas positions that are still masked, of all requests that wait or run: work to come, by which a router can
        compare servers. Each call counts them, in some microseconds for each request."""
        sequences = (*self.waiting.values(), *self.running.values())
        return sum([sequence.open_tokens() for sequence in sequences if sequence.state is not LEAVING])

    def make_room(self, client: str, reserved: Counter[str] | None = None) -> bool:
        """Admit what can be admitted if the queue is full. Return whether it takes another request of a client, besides
        those for which places are `reserved`, by client."""
        coming = Counter([client]) + (reserved or Counter())
        if self._over_queue(client, coming):
            self._admit()  # as `add` does
        return self._over_queue(client, coming) is None

    def load(self) -> Load:
        kept = self._prefixes.idle
        return Load(
            waiting=len(self.waiting),
            running=len(self.running),
            refine_lanes=self._lanes.refining,
            generate_lanes=self._lanes.live - self._lanes.refining,
            pages_used=self.pages.used - kept,
            pages_kept=kept,
            pages_total=self.pages.size,
        )

    def add(self, request: Request) -> None:
        """Queue a request. Raises `QueueFull`, and `ParamError` or `ValueError` if it can never run."""
        if request.length > self.limits.max_model_len:
            raise ValueError(f"{request.length} tokens exceed max_model_len {self.limits.max_model_len}")
        refuse(request.facts(self._vocabulary, self.limits, self.pattern, measured=self.budget is not None))
        sequence: Sequence
        made_of = request, self._vocabulary, self.pattern, self._lanes
        if request.scoring is not None:
            sequence = ScoredSequence(*made_of)
        elif request.decoder.denoiser is not None:
            sequence = CanvasSequence(*made_of, self.limits.max_model_len)
        else:
            sequence = Sequence(*made_of)
        sequence.find_hashes(self._prefixes)
        self.waiting[request.id] = sequence
        if self._over_queue(request.client):
            self._admit()  # free slots and pages may not have been handed out since the last plan
        if request.id in self.waiting and (limit := self._over_queue(request.client)) is not None:
            del self.waiting[request.id]
            raise QueueFull(f"the queue is full: {limit}")

    def end(self, request_id: int, outcome: Outcome) -> Ended | None:
        """End a request. Its slots and pages are free now, or at the commit of the step that carries it. Returns None
        if it has ended before, or is about to."""
        sequence = self.waiting.get(request_id) or self.running.get(request_id)
        if sequence is None or sequence.state is LEAVING:
            return None
        ended = Ended(sequence.state, sequence.stats)
        self._end(sequence, outcome)
        return ended

    def plan(self) -> StepPlan | None:
        """The next step. None: nothing is left to do, or all of it waits for a step in flight."""
        if self._in_flight and self.halving is None:
            raise RuntimeError("the step in flight must be committed or failed first")
        ready = self._fair(self._ready())
        placements: list[Placement] = []
        step: dict[int, PlannedRequest] = {}
        ends: dict[int, int] = {}  # up to where each request of the step computes
        room, share = self.limits.step_tokens, self._share(ready)
        for planned in ready:
            sequence = planned.sequence
            if share > 0 and planned.tokens <= room and sequence.may_begin(ends):
                room -= planned.tokens
                share -= planned.passed
                placements += sequence.layout.placements
                sequence.layout.placements.clear()
                sequence.move(STEPPING)
                step[sequence.id] = planned
                ends[sequence.id] = planned.window.end
                self._prompts.take(planned)
        if not step:
            return None
        requests = [*step.values()]
        plan = StepPlan(tuple(placements), tuple([row for planned in requests for row in planned.rows]))
        sent, candidates = plan, dict[int, slice]()
        if any(planned.sequence.scores_candidates for planned in requests):
            sent, candidates = _with_candidates(plan, requests)
        self._in_flight.append(StepInFlight(plan, requests, candidates))
        return sent

    def commit(self, result: StepResult) -> list[Update]:
        """Take in the oldest step in flight: lanes advance, final tokens are handed out, ended requests are freed."""
        self._step += 1
        in_flight = self._in_flight[0]
        step = in_flight.requests
        if in_flight.candidates:
            result = _take_candidates(in_flight, result)
        snapshots, failed, tokens = self._take(in_flight, result)
        self._predict_ends(step, result, tokens)
        statuses = dict(zip(snapshots, lane_statuses([*snapshots.values()], self._vocabulary), strict=True))
        updates: list[Update] = []
        for planned in step:
            sequence = planned.sequence
            sequence.served_at = self._step
            try:
                if sequence.id in failed:
                    updates.append(self._fail(sequence))
                    continue
                update = self._update(sequence, sequence.advance(planned, statuses.get(sequence.id)))
                if update is not None:
                    updates.append(update)
            except INTERRUPTS:
                raise
            except BaseException:
                logging.getLogger(__name__).exception(FAULT, sequence.id)
                updates.append(self._fail(sequence))
        self._in_flight.popleft()
        return updates

    def fail(self) -> list[Update]:
        """The oldest step in flight raised: end the requests that it carried, and only those."""
        return [self._fail(planned.sequence) for planned in self._in_flight.popleft().requests]

    def lost(self) -> list[Update]:
        """The ends, since the last call, of requests that no step carries because their planning failed."""
        lost, self._lost = self._lost, []
        return lost

    def check_integrity(self) -> None:
        """Raises `RuntimeError` if slots or pages leaked, or a state contradicts where a request is kept."""
        self.slots.check([slot for s in self.running.values() for slot in s.holding.slots])
        own = [page for s in self.running.values() for page in s.holding.pages]
        self.pages.check(own + self._prefixes.check(s.lease for s in self.running.values() if s.lease is not None))
        if any(s.state is not WAITING for s in self.waiting.values()):
            raise RuntimeError("a request in the queue is not waiting")
        if any(s.state in (WAITING, FINISHED) for s in self.running.values()):
            raise RuntimeError("a running request is waiting or finished")

    def _over_queue(self, client: str, coming: Counter[str] | None = None) -> str | None:
        """The limit that the queue exceeds for a client, in words, with the requests that are `coming`, by client.
        Beyond `max_queue` each client still has an equal part of it: one that fills the queue keeps nobody out."""
        limit, total = self.limits.max_queue, len(self.waiting)
        if coming is not None:
            # While nobody waits, free slots take the first of those that come.
            total += max(1, coming.total() - (0 if self.waiting else self.slots.free))
        if total <= limit:
            return None
        clients = Counter(sequence.request.client for sequence in self.waiting.values())
        clients.update(coming or ())
        own = clients[client]
        if own <= limit // len(clients):
            return None
        if own == total:
            return f"{own - 1} of {limit} requests wait"
        return f"{own - 1} of the {total - 1} requests that wait are this client's"

    def _admit(self) -> None:
        while (sequence := self._next()) is not None:
            request = sequence.request
            slots, pages = request.resources(self.limits, self.pattern)
            del self.waiting[sequence.id]
            self._turns.take(request.client, cost=pages / request.weight)
            if self.budget is not None and request.decoder.adaptive:
                load = min(self.limits.slots, 1 + len(self.waiting) + len(self.running))
                sequence.follow_load(self.budget.begin(load))
            lease, own = self._prefixes.take(sequence.block_hashes, pages, sequence.id)
            sequence.served_at = self._step
            sequence.move(RUNNING)
            self.running[sequence.id] = sequence
            try:
                sequence.admit(lease, Holding(self.slots.take(slots), own), self.limits)
            except INTERRUPTS:
                raise
            except BaseException:
                logging.getLogger(__name__).exception(FAULT, sequence.id)
                self._lost.append(self._fail(sequence))

    def _next(self) -> Sequence | None:
        """The next request to admit, or None. Clients take turns, and get at most half of everything while others wait.
        Further requests of a bundle that runs go last. Nobody overtakes a request that waits for room, or it might wait
        for ever."""
        if not self.waiting or not self.slots.free:
            return None
        first, bundles = self._first_of_clients()
        order = sorted(first, key=lambda one: (one.request.bundle in bundles, self._turns.begin(one.request.client)))
        for sequence in order:
            own = [other for other in self.running.values() if other.request.client == sequence.request.client]
            if not own or len(order) == 1 or self._fit_half(sequence, own):
                slots, pages = sequence.request.resources(self.limits, self.pattern)
                fits = slots <= self.slots.free and self._prefixes.fits(sequence.block_hashes, pages)
                return sequence if fits else None
        return None

    def _first_of_clients(self) -> tuple[Collection[Sequence], Collection[str | None]]:
        """The first request of each client that waits, in the order of arrival, and the bundles that run. A bundle gets
        at most half of everything at any time: its client's other requests pass it."""
        running: dict[str | None, list[Sequence]] = {}
        for sequence in self.running.values():
            running.setdefault(sequence.request.bundle, []).append(sequence)
        running.pop(None, None)
        first, full = dict[str, Sequence](), set[str | None]()
        for sequence in self.waiting.values():
            client, bundle = sequence.request.client, sequence.request.bundle
            if client not in first and bundle not in full:
                if bundle not in running or self._fit_half(sequence, running[bundle]):
                    first[client] = sequence
                else:
                    full.add(bundle)
        return first.values(), running.keys()

    def _fit_half(self, sequence: Sequence, others: list[Sequence]) -> bool:
        """Return whether a request and `others` need no more than half of all slots and pages together."""
        slots, pages = sequence.request.resources(self.limits, self.pattern)
        shared = self._prefixes.numbers(sequence.block_hashes)
        held = self._pages_of(others)
        slots += sum(len(other.holding.slots) for other in others)
        return 2 * slots <= self.slots.size and 2 * (len(held | shared) + pages - len(shared)) <= self.pages.size

    def _pages_of(self, others: list[Sequence]) -> frozenset[int]:
        """All pages of requests that run. They have the same ones as long as they do, so they are counted once."""
        key = tuple([other.id for other in others])
        if key not in self._pages_together:
            self._pages_together[key] = frozenset().union(*(other.pages for other in others))
        return self._pages_together[key]

    def _ready(self) -> list[PlannedRequest]:
        """The next step of each request that runs and is in no step in flight, the longest waiting first. A request
        that fails makes room for the next in the queue."""
        while True:
            ready, lost = [], len(self._lost)
            self._admit()
            free = [sequence for sequence in self.running.values() if sequence.state is RUNNING]
            prompts, in_flight = self._prompts.open(free), self._requests_in_flight()
            alone = all(isinstance(sequence, ScoredSequence) for sequence in self.running.values())
            ends = {} if alone else score_ends(free, in_flight)
            ready += self._planned([sequence for sequence in free if sequence.id not in prompts], ends)
            if prompts:
                ends = self._prompts.ends([*prompts.values()], in_flight, size_of(ready), self.pacing)
                ready += self._planned([prompt.sequence for prompt in prompts.values()], ends)
                ready.sort(key=lambda planned: (planned.sequence.served_at, planned.sequence.id))
            if lost == len(self._lost):
                return ready

    def _planned(self, sequences: list[Sequence], ends: dict[int, int]) -> list[PlannedRequest]:
        """The next step of each, the longest waiting first. `ends`: see `Sequence.plan`, by id; 0: it waits."""
        found = []
        for sequence in sorted(sequences, key=attrgetter("served_at", "id")):
            end = ends.get(sequence.id)
            if end == 0:
                continue
            try:
                found.append(_fitting(sequence.plan(end), self.limits.step_tokens))
            except INTERRUPTS:
                raise
            except BaseException:
                logging.getLogger(__name__).exception(FAULT, sequence.id)
                self._lost.append(self._fail(sequence))
        return found

    def _requests_in_flight(self) -> list[PlannedRequest]:
        return [planned for step in self._in_flight for planned in step.requests]

    def _fair(self, ready: list[PlannedRequest]) -> list[PlannedRequest]:
        """Those that are `ready`, without those by which one client would make a step take more than twice as long as
        it takes for the others. A network that computes for this client in any case has a position of the others, too,
        so that its fixed time counts on both sides. One request of each client goes all the same, the longest waiting
        of those that may begin: one that waits for a prompt of its own client would take the turn of the request that
        computes it."""
        in_flight = self._requests_in_flight()
        if len({planned.sequence.request.client for planned in (*in_flight, *ready)}) < 2:
            return ready
        ready = _able_to_begin(ready)
        tokens = Counter[str]()
        for planned in (*in_flight, *ready):
            tokens[planned.sequence.request.client] += planned.passed
        ((greedy, _),) = tokens.most_common(1)
        others = size_of([one for one in (*in_flight, *ready) if one.sequence.request.client != greedy])
        used = size_of([one for one in in_flight if one.sequence.request.client == greedy])
        fair = []
        for planned in ready:
            if planned.sequence.request.client == greedy:
                more = used.plus(StepSize(planned.passed, planned.drafted))
                if used.tokens and self._cost(others.plus(more)) > 2 * self._cost(others.reaching(used)):
                    continue
                used = more
            fair.append(planned)
        return fair

    def _cost(self, work: StepSize) -> float:
        """The time of a step if it is known, else the positions that it computes."""
        return work.tokens if self.budget is None else self.budget.cost(*work)

    def _share(self, ready: list[PlannedRequest]) -> int:
        """Positions in all layers that fill the next step: all there are, or half where two steps are in flight. The
        request that reaches this number still goes, since otherwise it would lose a turn."""
        wanted = size_of(ready)
        if self.halving is None:
            return wanted.tokens
        everything = wanted.plus(size_of(self._requests_in_flight()))
        if self.halving.pays(everything):
            return -(-everything.tokens // 2)
        return 0 if self._in_flight else wanted.tokens

    def _take(self, step: StepInFlight, result: StepResult) -> tuple[dict[int, LaneSnapshot], set[int], Ints]:
        """Write a result to the canvases. Returns snapshots of the requests whose lanes it drives, the ids of those
        that failed, and the tokens [positions] at all spans after host commit rules have decided."""
        snapshots: dict[int, LaneSnapshot] = {}
        failed: set[int] = set()
        tokens, edges = result.tokens, step.edges(result)
        decided = _decided(step.requests, edges, result)
        for planned, start, end in zip(step.requests, edges[:-1], edges[1:], strict=True):
            sequence = planned.sequence
            try:
                if planned.spans:
                    commits = decided.get(sequence.id)
                    if isinstance(commits, BaseException):
                        raise commits
                    left = sequence.take(planned.spans, result, slice(start, end), commits)
                    if left is not None:
                        tokens = tokens.copy() if tokens is result.tokens else tokens
                        tokens[start : start + len(left)] = left
                if planned.window.drives:
                    snapshots[sequence.id] = sequence.snapshot()
            except INTERRUPTS:
                raise
            except BaseException:
                logging.getLogger(__name__).exception(FAULT, sequence.id)
                failed.add(sequence.id)
        return snapshots, failed, tokens

    def _predict_ends(self, step: list[PlannedRequest], result: StepResult, tokens: Ints) -> None:
        """Find where the network is about to end each answer: the first open position at which it proposes an end token
        with enough confidence. With more, an answer that is committed up to there ends now."""
        least = min([planned.sequence.request.decoder.end_threshold for planned in step])
        if least == math.inf:
            return  # nobody looks for an end
        first: dict[int, PredictedEnd] = {}
        if ends := self._proposed_ends(result, tokens, least):
            spans = []
            for planned in step:
                threshold = planned.sequence.request.decoder.end_threshold
                for span in planned.spans:  # a refine lane may not end the answer
                    counts = span.may_end or span.start >= planned.extent.last
                    spans.append(EndSpan(planned.sequence.id, span.start, span.end, threshold if counts else math.inf))
            first = predicted_ends(spans, ends, result.confidence[ends].tolist())
        for planned in step:
            sequence = planned.sequence
            end = first.get(sequence.id)
            # Without lanes in the step nothing new was seen.
            if planned.window.drives and (end is not None or sequence.predicted_end != NO_END):
                sequence.predict_end(None if end is None else end.position, planned.window)
            if end is not None and result.confidence[end.at] >= sequence.stop_threshold:
                sequence.stop_at(end.position, int(result.proposals[end.at]))

    def _proposed_ends(self, result: StepResult, tokens: Ints, least: float) -> list[int]:
        """The open positions of a result, ascending, at which an end token is proposed with at least the confidence
        `least`. Some are looked through without numpy, as in `Vocabulary.kinds_of`."""
        ids, mask_id = self._vocabulary.ends, self._vocabulary.mask_id
        if len(tokens) <= SHORT:
            proposed = [at for at, token in enumerate(result.proposals.tolist()) if token in ids]
            return [at for at in proposed if tokens[at] == mask_id and result.confidence[at] >= least]
        wanted = self._vocabulary.is_end[result.proposals] & (tokens == mask_id) & (result.confidence >= least)
        found: list[int] = np.flatnonzero(wanted).tolist()
        return found

    def _update(self, sequence: Sequence, events: LaneEvents | None) -> Update | None:
        if sequence.state is LEAVING:
            self._release(sequence)
            return sequence.report_end()
        sequence.move(RUNNING)
        update = sequence.report(events)
        if update is not None and update.outcome is not None:
            self._release(sequence)
        return update

    def _fail(self, sequence: Sequence) -> Update:
        if sequence.state is FINISHED:  # it had ended, but the update of that is lost
            sequence.outcome = Outcome.FAILED
        self._end(sequence, Outcome.FAILED)
        if sequence.state is LEAVING:
            self._release(sequence)
        return sequence.report_end()

    def _end(self, sequence: Sequence, outcome: Outcome) -> None:
        if sequence.state in (LEAVING, FINISHED):
            return
        sequence.outcome = outcome
        if sequence.state is STEPPING:
            sequence.move(LEAVING)
        else:
            self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        if sequence.state is WAITING:
            del self.waiting[sequence.id]
        else:
            del self.running[sequence.id]
            self._pages_together.clear()
            sequence.tree.close()
            self.slots.give(sequence.holding.slots)
            self.pages.give(sequence.holding.pages)
            if sequence.lease is not None:
                sequence.lease.end()
            if self.budget is not None and sequence.shape is not None:
                self.budget.end(sequence.shape, sequence.answer_cost())
        sequence.move(FINISHED)


def _able_to_begin(ready: list[PlannedRequest]) -> list[PlannedRequest]:
    """Those whose prompts are computed, or will be by requests before them if these go."""
    able, ends = list[PlannedRequest](), dict[int, int]()
    for planned in ready:
        if planned.sequence.may_begin(ends):
            able.append(planned)
            ends[planned.sequence.id] = planned.window.end
    return able


def _fitting(planned: PlannedRequest, step_tokens: int) -> PlannedRequest:
    """A request's part of a step. Raises `RuntimeError` if no step has room for it: it would wait for ever."""
    if planned.tokens > step_tokens:
        raise RuntimeError(f"request {planned.sequence.id} plans {planned.tokens} tokens for steps of {step_tokens}")
    return planned


def _with_candidates(plan: StepPlan, requests: list[PlannedRequest]) -> tuple[StepPlan, dict[int, slice]]:
    """A plan whose requests score their candidates, if they do so in this step; and by request, the places of these in
    the result."""
    rows: list[Row] = []
    found: dict[int, slice] = {}
    place = 0
    for planned in requests:
        sequence, (first, *others) = planned.sequence, planned.rows
        if sequence.scores_candidates and first.spans:
            first = with_candidates(first, sequence.request.candidates)
            end = place + sum([span.end - span.start for span in first.spans])
            found[sequence.id] = slice(end - len(sequence.request.candidates), end)
        rows += (first, *others)
        place += sum([span.end - span.start for row in (first, *others) for span in row.spans])
    return StepPlan(plan.placements, tuple(rows)), found


def _take_candidates(step: StepInFlight, result: StepResult) -> StepResult:
    """Hand out the log-probabilities of candidates. Returns the rest of the result."""
    for planned in step.requests:
        part = step.candidates.get(planned.sequence.id)
        if part is not None and result.scores is not None:
            planned.sequence.take_candidates(result.scores.chosen[part])
    return without(result, [*step.candidates.values()])


def _decided(
    requests: list[PlannedRequest], edges: list[int], result: StepResult
) -> dict[int, Commits | BaseException]:
    """The decisions of host commit rules, by request, or what they have raised. `edges` [requests + 1] are where each
    request's part of the result begins."""
    inputs: dict[int, RuleInput] = {}
    for planned, start, end in zip(requests, edges[:-1], edges[1:], strict=True):
        sequence = planned.sequence
        if planned.spans and sequence.host_rule is not None:
            inputs[sequence.id] = sequence.rule_input(sequence.host_rule, planned.spans, slice(start, end))
    return dict(zip(inputs, decide([*inputs.values()], result), strict=True)) if inputs else {}
