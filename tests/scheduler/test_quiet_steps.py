"""The scheduler leaves out what a step in which little happens does not change. Plans, updates and counters are those
of a scheduler that leaves nothing out."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import numpy as np
import pytest

from asynclane.scheduler.contract import StepPlan
from asynclane.scheduler.decoding.boundaries import Boundary, Nesting, Packed, boundaries
from asynclane.scheduler.decoding.lane_tree import Lane, Role
from asynclane.scheduler.decoding.lanes.asynclane import AsyncLane
from asynclane.scheduler.decoding.lanes.base import ABSENT, LaneStatus
from asynclane.scheduler.decoding.vocabulary import END, LINE
from asynclane.scheduler.lane_status import LaneSnapshot, lane_statuses
from asynclane.scheduler.logit_bias import NEUTRAL, Preferences
from asynclane.scheduler.request import Outcome, Request, State
from asynclane.scheduler.sequence import Sequence

from ..support.fakes import MASK, PIECES, add, random_executor, vocabulary
from ..support.scale import ALL
from ..support.schedules import CASES, decoder_for, scheduler_of

PENALTIES = Preferences(presence=0.5, frequency=0.1, min_tokens=2)


def plain(value: Any) -> Any:
    """Arrays as lists, at any depth."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    slots = getattr(type(value), "__slots__", None)
    return [plain(getattr(value, name)) for name in slots] if isinstance(slots, tuple) and slots else value


def trace(seed: int, leaves_out: bool) -> list[Any]:
    """All that a scheduler says while it serves requests that `seed` chooses."""
    rng = random.Random(seed)
    depth, shift = 1 + seed % 2, seed // 2 % 2
    scheduler, executor = scheduler_of(depth, shift), random_executor(seed, rng.choice([0.0, 0.05]), shift)
    in_flight: deque[StepPlan] = deque()
    sequences: list[Sequence] = []
    found: list[Any] = []
    for number in range(rng.randint(2, 6)):
        name, params = rng.choice(CASES)
        length = rng.randint(1, 40)
        prompt = np.array([rng.randrange(2, len(PIECES)) for _ in range(rng.randint(1, 30))], np.int32)
        decoder, preferences = decoder_for(name, params, length), rng.choice([NEUTRAL, NEUTRAL, PENALTIES])
        request = Request(number, prompt, length, decoder, watched=rng.random() < 0.2, preferences=preferences)
        sequences.append(add(scheduler, request))
        if not leaves_out:
            sequences[-1]._waits = sequences[-1]._only_writes = False
    while True:
        while len(in_flight) < depth and (plan := scheduler.plan()) is not None:
            in_flight.append(plan)
            found += [plain(plan.placements), plain(plan.rows), plan.tokens]
        if not in_flight:
            break
        leaver = rng.choice(sequences)
        if rng.random() < 0.03 and leaver.state is not State.FINISHED:
            found.append(plain(scheduler.end(leaver.id, Outcome.ABORTED)))
        updates = scheduler.commit(executor.execute(in_flight.popleft()))
        found += [plain(update) for update in updates]
        found += [plain(scheduler.load()), [(one.stats, one.frontier, one.predicted_end) for one in sequences]]
    return [*found, [(one.outcome, one.canvas.tolist()) for one in sequences]]


@pytest.mark.parametrize("seeds", [range(start, start + 20) for start in range(0, 400 if ALL else 20, 20)])
def test_nothing_is_left_out_that_matters(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    short = [trace(seed, leaves_out=True) for seed in seeds]
    monkeypatch.setattr(AsyncLane, "crowded", lambda policy, tree: False)
    assert [trace(seed, leaves_out=False) for seed in seeds] == short


def random_snapshot(rng: random.Random) -> tuple[LaneSnapshot, Nesting]:
    lanes, tokens = list[Lane](), list[int]()
    start = rng.randint(0, 50)
    for number in range(rng.randint(1, 4)):
        first = start + len(tokens)
        tokens += [rng.choice((MASK, rng.randrange(1, len(PIECES)))) for _ in range(rng.randint(1, 24))]
        role = rng.choice((Role.GENERATE, Role.REFINE))
        lanes.append(Lane(number, None, role, first, start + len(tokens), 0))
        tokens += [rng.randrange(1, len(PIECES)) for _ in range(rng.choice((0, 0, 2)))]  # committed, in no lane
    tokens = tokens[: lanes[-1].end - start]
    nesting = rng.choice((Nesting(), Nesting(in_code=True, brackets=rng.randint(0, 1)), Nesting(bare=False)))
    boundary, fill = rng.choice(list(Boundary)), rng.choice((0.0, 0.3, 0.5))
    settled = None if rng.random() < 0.7 else np.array([rng.random() < 0.9 for _ in tokens], np.bool_)
    marks = LINE if rng.random() < 0.3 else 0
    edges = rng.random() < 0.3
    known = np.array(tokens, np.int32)
    return LaneSnapshot(lanes, known, settled, boundary, lambda: nesting, fill, marks, edges=edges), nesting


def expected(snapshot: LaneSnapshot, nesting: Nesting) -> list[LaneStatus]:
    """The status of each lane, found position by position."""
    tokens, origin = snapshot.tokens, snapshot.lanes[0].start
    classes = vocabulary().classes[tokens]
    offset = np.zeros(len(tokens), np.int64)
    for lane in snapshot.lanes:
        offset[lane.start - origin :] = np.arange(len(tokens) - (lane.start - origin))
    ends = boundaries(Packed(tokens, np.zeros(1, np.int64), [snapshot.boundary], [nesting]), offset, vocabulary())
    found = []
    for lane in snapshot.lanes:
        here, size = range(lane.start - origin, lane.end - origin), lane.end - lane.start
        forks = [
            at
            for at in (here if snapshot.edges else here[1:-1])
            if ends[at] and np.count_nonzero(tokens[here[0] : at + 1] != MASK) >= snapshot.min_fill * (at + 1 - here[0])
        ]
        fork = forks[-1] if forks and lane.role is Role.GENERATE else ABSENT
        if snapshot.settled is not None and fork == ABSENT:
            run = next((n for n, at in enumerate(here) if not snapshot.settled[at]), size)
            fork = here[0] + run - 1 if run < size <= 2 * run else ABSENT
        end, mark = (next((at for at in here if classes[at] & kinds), ABSENT) for kinds in (END, snapshot.marks))
        masks = int(np.count_nonzero(tokens[here[0] : here[-1] + 1] == MASK))
        found.append(LaneStatus(masks, *(ABSENT if at == ABSENT else at + origin for at in (fork, end, mark))))
    return found


def test_boundaries_are_found_where_a_look_at_every_position_finds_them() -> None:
    rng = random.Random(3)
    for _ in range(400 if ALL else 100):
        cases = [random_snapshot(rng) for _ in range(rng.randint(1, 6))]
        for (snapshot, nesting), status in zip(
            cases, lane_statuses([snapshot for snapshot, _ in cases], vocabulary()), strict=True
        ):
            wanted = expected(snapshot, nesting)
            assert status.lanes == wanted
            quiet = all(one.open and one[1:] == (ABSENT, ABSENT, ABSENT) for one in wanted)
            assert (status.eventful is None) == quiet
            open_ = np.flatnonzero(snapshot.tokens == MASK).tolist()
            assert status.first_open == (snapshot.lanes[0].start + open_[0] if open_ else ABSENT)
