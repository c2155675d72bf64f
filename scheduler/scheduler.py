"""The scheduler: `plan` chooses what a step computes, `commit` takes in what it brought.

Requests enter first come, first served, once a slot and all the pages they can ever need are free: nothing is ever
preempted, since recomputing keys and values would change an answer. In a step, the request that has waited longest
goes first, so nobody starves.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from .caches import Reach, Window
from .contract import Ints, Placement, Row, Span, StepPlan, StepResult
from .digest import lane_facts
from .pages import Limits, Pool
from .request import Outcome, Request, Sequence, State
from .tree import Lane
from .vocabulary import Vocabulary


class QueueFull(Exception):
    """As many requests wait as the limits allow."""


@dataclass(frozen=True, slots=True)
class Update:
    """What a step brought a request: the tokens that became final, in output order, and its end, if it ended.

    End tokens are not among `tokens`.
    """

    sequence: Sequence
    tokens: Ints
    outcome: Outcome | None


@dataclass(frozen=True, slots=True)
class Work:
    """A row of the step in flight, with what the commit needs to know of it."""

    sequence: Sequence
    window: Window
    reach: Reach


class Scheduler:
    def __init__(self, limits: Limits, vocabulary: Vocabulary) -> None:
        self.limits = limits
        self.slots = Pool(limits.slots)
        self.pages = Pool(limits.pages)
        self.waiting: deque[Sequence] = deque()
        self.running: dict[int, Sequence] = {}
        self._vocabulary = vocabulary
        self._in_flight: list[Work] = []
        self._step = 0

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    def add(self, request: Request) -> Sequence:
        """Queue a request. Raises `QueueFull`, and `ValueError` if it can never fit."""
        length = len(request.prompt) + request.max_tokens
        if length > self.limits.max_model_len:
            raise ValueError(f"{length} tokens exceed max_model_len {self.limits.max_model_len}")
        if len(self.waiting) >= self.limits.max_queue + self.slots.free:  # free slots are taken at the next plan
            raise QueueFull(f"{len(self.waiting)} requests are waiting, the limit is {self.limits.max_queue}")
        sequence = Sequence.of(request, self._vocabulary.mask_id)
        self.waiting.append(sequence)
        return sequence

    def end(self, sequence: Sequence, outcome: Outcome) -> None:
        """End a request in any state; what it holds is free now, or at the commit of the step that carries it."""
        if sequence.state in (State.LEAVING, State.FINISHED):
            return
        sequence.outcome = outcome
        if sequence.state is State.STEPPING:
            sequence.move(State.LEAVING)
        else:
            self._release(sequence)

    def plan(self) -> StepPlan | None:
        """The next step, or None if nothing is left to do."""
        if self._in_flight:
            raise RuntimeError("the step in flight must be committed or failed first")
        self._admit()
        rows: list[Row] = []
        placements: list[Placement] = []
        budget = self.limits.step_tokens
        for sequence in sorted(self.running.values(), key=_longest_waiting):
            work = self._work(sequence)
            if work.window.tokens <= budget:
                budget -= work.window.tokens
                rows.append(self._row(work))
                if not sequence.steps:
                    placements.append(Placement(sequence.slot, sequence.request.prompt, sequence.pages))
                sequence.move(State.STEPPING)
                self._in_flight.append(work)
        return StepPlan(tuple(placements), tuple(rows)) if rows else None

    def commit(self, plan: StepPlan, result: StepResult) -> list[Update]:
        """Take in a step: lanes advance, final tokens are handed out, what ended is freed."""
        self._step += 1
        lanes = self._write(plan, result)
        facts = lane_facts(
            [work.sequence.canvas[lane.start : lane.end] for work, lane in lanes],
            [lane.start for _, lane in lanes],
            [work.sequence.request.decoder.policy.min_fill for work, _ in lanes],
            self._vocabulary,
        )
        updates = []
        done = 0
        for work in self._in_flight:
            sequence = work.sequence
            mine, done = facts[done : done + len(sequence.tree.live)], done + len(sequence.tree.live)
            sequence.advance(mine, work.window, work.reach)
            sequence.served_at = self._step
            updates.append(self._update(sequence))
        self._in_flight.clear()
        return updates

    def fail(self) -> list[Update]:
        """The step in flight raised: end the requests it carried, and only those."""
        updates = []
        for work in self._in_flight:
            sequence = work.sequence
            if sequence.state is State.FINISHED:  # it had ended, but what the commit would have told is lost
                sequence.outcome = Outcome.FAILED
            else:
                sequence.outcome = sequence.outcome or Outcome.FAILED
                self._release(sequence)
            updates.append(Update(sequence, sequence.canvas[:0], sequence.outcome))
        self._in_flight.clear()
        return updates

    def check_integrity(self) -> None:
        """Raises `RuntimeError` if slots or pages leaked, or a state contradicts where a request is kept."""
        self.slots.check([s.slot for s in self.running.values()])
        self.pages.check([page for s in self.running.values() for page in s.pages])
        if any(s.state is not State.WAITING for s in self.waiting):
            raise RuntimeError("a request in the queue is not waiting")
        if any(s.state in (State.WAITING, State.FINISHED) for s in self.running.values()):
            raise RuntimeError("a running request is waiting or finished")

    def _admit(self) -> None:
        while self.waiting and self.slots.free:
            sequence = self.waiting[0]
            needed = self.limits.pages_for(sequence.prompt_length + sequence.request.max_tokens)
            if needed > self.pages.free:
                break  # first come, first served: nobody overtakes
            self.waiting.popleft()
            (sequence.slot,) = self.slots.take(1)
            sequence.pages = self.pages.take(needed)
            sequence.served_at = self._step
            sequence.move(State.RUNNING)
            self.running[sequence.id] = sequence

    def _work(self, sequence: Sequence) -> Work:
        reach = sequence.reach()
        return Work(sequence, sequence.cache.window(reach), reach)

    def _write(self, plan: StepPlan, result: StepResult) -> list[tuple[Work, Lane]]:
        """Copies the result into the canvases; returns the live lanes of the step in order."""
        offset = 0
        for work, row in zip(self._in_flight, plan.rows, strict=True):
            sequence, prompt = work.sequence, work.sequence.prompt_length
            for span in row.spans:
                size = span.end - span.start
                sequence.canvas[span.start - prompt : span.end - prompt] = result.tokens[offset : offset + size]
                offset += size
        return [(work, lane) for work in self._in_flight for lane in work.sequence.tree.live]

    def _row(self, work: Work) -> Row:
        sequence, window = work.sequence, work.window
        request, prompt = sequence.request, sequence.prompt_length
        transfer = request.decoder.rule.transfer
        first = sequence.tree.live[0]
        spans = tuple(
            Span(max(prompt + lane.start, window.start), prompt + lane.end, transfer(lane, lane is first))
            for lane in sequence.tree.live
        )
        return Row(sequence.slot, window.start, window.end, window.visible, spans, request.sampling, sequence.steps)

    def _update(self, sequence: Sequence) -> Update:
        if sequence.state is State.LEAVING:
            self._release(sequence)
            return Update(sequence, sequence.canvas[:0], sequence.outcome)
        sequence.move(State.RUNNING)
        tokens = sequence.hand_out()
        sequence.outcome = sequence.ending()
        if sequence.outcome is not None:
            self._release(sequence)
        return Update(sequence, tokens, sequence.outcome)

    def _release(self, sequence: Sequence) -> None:
        if sequence.state is State.WAITING:
            self.waiting.remove(sequence)
        else:
            del self.running[sequence.id]
            self.slots.give((sequence.slot,))
            self.pages.give(sequence.pages)
        sequence.move(State.FINISHED)


def _longest_waiting(sequence: Sequence) -> tuple[int, int]:
    return sequence.served_at, sequence.id
