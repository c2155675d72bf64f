"""`asynclane-paper` on the embedded model: each rule of the paper, and what switches it off."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from asynclane.scheduler import PLAIN, Scheduler, Vocabulary, resolve
from asynclane.scheduler.contract import StepPlan
from asynclane.scheduler.decoding.lane_tree import Role
from asynclane.scheduler.decoding.paper import CHOSEN
from asynclane.scheduler.decoding.registry import DECODERS
from asynclane.scheduler.decoding.vocabulary import END, STOP
from asynclane.scheduler.lane_events import Fate, LaneChange

from ..support.cases import STORY, chat, network
from ..support.driver import LIMITS, Answer, Spec
from ..support.fakes import add
from ..support.golden import WHOLE

MATH = chat("Tom has 12 books. He buys 7 more books. Then he gives away 5 books. How many books does Tom have now?")
LENGTH = 64
EARLY: dict[str, Any] = {"min_fill": 0.1, "min_steps": 1, "threshold": 0.95}  # many forks


def answers(decoder: str = "asynclane-paper", **params: Any) -> list[Answer]:
    return _answers(decoder, tuple(params.items()))


@cache
def _answers(decoder: str, params: tuple[tuple[str, object], ...]) -> list[Answer]:
    return network("tiny-llada").run([Spec(p, LENGTH, decoder, dict(params), watched=True) for p in (STORY, MATH)])


def masks(lane: LaneChange) -> int:
    return int(np.count_nonzero(lane.tokens == network("tiny-llada").vocabulary.mask_id))


def test_without_forks_and_drafts_it_is_fast_dllm_with_its_prefix_cache() -> None:
    off = {"siblings": "coupled", "max_lanes": 1, "lookahead": "canvas", "draft_threshold": "off"}
    ours = answers(**off, refresh_margin=LENGTH, **WHOLE)
    theirs = answers("fast-dllm", cache="prefix", threshold=0.9, **WHOLE)
    for one, other in zip(ours, theirs, strict=True):
        assert one.canvas.tolist() == other.canvas.tolist()
        assert (one.steps, one.computed_tokens) == (other.steps, other.computed_tokens)


def test_every_live_lane_commits_in_each_forward() -> None:
    seen = 0
    for answer in answers(**EARLY):
        for event in answer.events:
            for lane in event.lanes:
                assert any(lane.start <= position < lane.end for position in event.positions.tolist())
            seen += len(event.lanes) > 1
    assert seen > 3


def test_lanes_fork_after_full_stops_alone_once_enough_of_the_lane_is_committed(vocabulary: Vocabulary) -> None:
    forks = 0
    for answer in answers(min_fill=0.5):
        steps: dict[int, int] = {}
        for event in answer.events:
            for lane in event.lanes:
                steps[lane.id] = steps.get(lane.id, 0) + 1
                if lane.fate is Fate.FORKED:
                    (child,) = {one.start for later in answer.events for one in later.lanes if one.parent == lane.id}
                    assert vocabulary.classes[lane.tokens[child - lane.start - 1]] & STOP
                    assert masks(lane) <= 0.5 * len(lane.tokens)
                    assert steps[lane.id] >= 2
                    forks += 1
    assert forks > 1


def test_a_lane_begins_with_the_drafts_that_stand_there() -> None:
    inherited = 0
    for answer in answers(**EARLY, draft_threshold=0.3):
        written = {position: event.step for event in answer.events for position in event.positions.tolist()}
        first = {lane.start: event.step for event in reversed(answer.events) for lane in event.lanes}
        inherited += sum(written[start] < step for start, step in first.items() if start in written)
    assert inherited > 0


def test_a_child_is_a_block_long_or_ends_with_the_lane_that_forked() -> None:
    """One that forks at its last position leaves nothing."""
    for kind in ("block", "rest"):
        forked = 0
        for answer in answers(**EARLY, **({} if kind == "block" else {"child_length": kind})):
            lanes = [lane for event in answer.events for lane in event.lanes]
            for parent in (lane for lane in lanes if lane.fate is Fate.FORKED):
                child = next(lane for lane in lanes if lane.parent == parent.id)
                rest = kind == "rest" and child.start < parent.end
                assert child.end == (parent.end if rest else min(child.start + 32, LENGTH))
                forked += rest or kind == "block"
        assert forked > 2


def test_an_end_token_ends_its_lane_once_that_is_full(vocabulary: Vocabulary) -> None:
    """Refine lanes and drafts never end an answer; nothing begins after the end."""
    waited = 0
    for answer in answers():
        for event in answer.events:
            for position, token in zip(event.positions.tolist(), event.tokens.tolist(), strict=True):
                if vocabulary.classes[token] & END:
                    assert [one.role for one in event.lanes if one.start <= position < one.end] == [Role.GENERATE]
            waited += any(lane.end > answer.end_at >= lane.start and masks(lane) for lane in event.lanes)
        assert max(lane.start for event in answer.events for lane in event.lanes) <= answer.end_at
    assert waited > 0


def test_a_refresh_follows_each_finished_lane_and_drives_all_lanes() -> None:
    """Without reuse each full pass is a forward of its own."""
    for answer, alone in zip(answers(**EARLY), answers(**EARLY, reuse=False), strict=True):
        last = {lane.id: event.step for event in answer.events for lane in event.lanes}  # a fork may leave it full
        ended = sorted({*last.values()})
        refreshed = [event.step for event in answer.events if event.refresh]
        assert refreshed == [step + 1 for step in ended if step + 1 < answer.steps]
        assert all(event.lanes for event in answer.events)
        assert alone.canvas.tolist() == answer.canvas.tolist()
        assert alone.steps == answer.steps + 1 + answer.refreshes
        assert alone.reused_refreshes == 0 < answer.reused_refreshes == answer.refreshes


def proposals_after_a_fork(changed: bool, refresh_every: int) -> list[int]:
    """The network's proposals in the generate lane in the forward after a fork. The tokens of its sibling may have been
    `changed` in between."""
    net = network("tiny-llada")
    scheduler = Scheduler(LIMITS, net.vocabulary)
    params = {**EARLY, "threshold": 1.0, "refresh_every": refresh_every, "refresh_on": "steps"}
    sequence = add(scheduler, Spec(STORY, LENGTH, "asynclane-paper", params).request(0, PLAIN))
    while len(sequence.tree.live) < 2:
        plan = scheduler.plan()
        assert plan is not None
        scheduler.commit(net.runner.execute(plan))
    first, last = sequence.tree.live[0], sequence.tree.live[-1]
    if changed:
        tokens = sequence.canvas[first.start : first.end]
        tokens[tokens != net.vocabulary.mask_id] = 7
    plan = scheduler.plan()
    assert plan is not None
    spans = [span for row in plan.rows for span in row.spans]
    at = sum(
        span.end - span.start for span in spans[: [span.end for span in spans].index(sequence.tree.origin + last.end)]
    )
    found: list[int] = net.runner.execute(plan).proposals[at : at + last.end - last.start].tolist()
    return found


def test_a_generate_lane_is_frozen_until_a_refresh_reads_what_its_sibling_wrote() -> None:
    assert proposals_after_a_fork(False, 0) == proposals_after_a_fork(True, 0)
    assert proposals_after_a_fork(False, 1) != proposals_after_a_fork(True, 1)


def test_a_fork_copies_one_page_and_nothing_else_before_the_next_refresh() -> None:
    net = network("tiny-llada")
    plans: list[StepPlan] = []

    class Kept:
        def execute(self, plan: StepPlan) -> Any:
            plans.append(plan)
            return net.runner.execute(plan)

    kept: Any = Kept()
    (answer,) = replace(net, runner=kept).run([Spec(STORY, LENGTH, "asynclane-paper", {**EARLY, "refresh_every": 0})])
    copies = [placement.copied for plan in plans for placement in plan.placements]
    assert 0 < sum(map(len, copies)) <= answer.forks
    assert max(map(len, copies)) == 1


def test_each_sentence_on_what_the_paper_leaves_open_is_of_a_parameter() -> None:
    assert {*CHOSEN} <= {*DECODERS["asynclane-paper"].defaults}
    assert resolve("asynclane-paper", {}, 64).later_threshold == 0.0
