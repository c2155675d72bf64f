"""Counts what AsyncLane's paper reports of its lanes, from the lane events of answers: forks, lead, overlap, calls.

The paper (arXiv 2606.08411) defines none of them. Here a pair is a refine lane and the lane that its fork began, from
the fork until either ends. A call is a forward that drives lanes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from ...server.text.lanes import LaneEvent, LaneView


@dataclass(slots=True)
class LaneFigures:
    """Sums over answers. `lead` is the committed share of a pair's later lane less that of its refine lane, over
    `pair_calls`; it is positive for some pair in `ahead_calls` of `lane_calls`. Each lane of a call counts in `lanes`,
    those of a pair in `paired`. `paper_calls` are calls as the paper counts them: lanes that began or forked in the
    same call, or since when a refresh has brought them to one state, share one; others need one each. `most` is the
    largest number of lanes in a call."""

    forks: int = 0
    pair_calls: int = 0
    lead: float = 0.0
    ahead_calls: int = 0
    lane_calls: int = 0
    lanes: int = 0
    paired: int = 0
    paper_calls: int = 0
    most: int = 0

    @classmethod
    def of(cls, answers: Iterable[Sequence[LaneEvent]]) -> LaneFigures:
        found = cls()
        for events in answers:
            found._add(events)
        return found

    @property
    def mean_lead(self) -> float:
        return self.lead / max(1, self.pair_calls)

    @property
    def ahead(self) -> float:
        """The share of calls in which the later lane of a pair is ahead."""
        return self.ahead_calls / max(1, self.lane_calls)

    @property
    def overlap(self) -> float:
        """The share of the lanes of all calls that are one of a pair."""
        return self.paired / max(1, self.lanes)

    def json(self) -> dict[str, float]:
        sums = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**sums, "mean_lead": self.mean_lead, "ahead": self.ahead, "overlap": self.overlap}

    def _add(self, events: Sequence[LaneEvent]) -> None:
        states: dict[int, int] = {}  # by lane, the call that has left the keys and values before it
        for number, event in enumerate(events):
            whole = event.refresh or number == 0
            if whole:
                states.clear()
            for lane in event.lanes:
                states.setdefault(lane.id, number if whole else number - 1)
            self.paper_calls += 1 if whole else len({states[lane.id] for lane in event.lanes})
            forked = [lane.id for lane in event.lanes if lane.fate == "forked"]
            states |= dict.fromkeys(forked, number)
            self.forks += len(forked)
            if event.lanes:
                self._add_call(event.lanes)

    def _add_call(self, lanes: Sequence[LaneView]) -> None:
        pairs = [(one, other) for one in lanes if one.role == "refine" for other in lanes if other.parent == one.id]
        leads = [_fill(later) - _fill(refine) for refine, later in pairs]
        self.pair_calls += len(pairs)
        self.lead += sum(leads)
        self.ahead_calls += any(lead > 0 for lead in leads)
        self.lane_calls += 1
        self.lanes += len(lanes)
        self.paired += len({lane.id for pair in pairs for lane in pair})
        self.most = max(self.most, len(lanes))


def _fill(lane: LaneView) -> float:
    """The committed share of a lane."""
    return 1 - lane.tokens.count(None) / len(lane.tokens)
