"""How lanes are born, forked, finished and cancelled, on canvases written by hand."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from asynclane.scheduler.decoding.boundaries import Boundary, Nesting
from asynclane.scheduler.decoding.lane_tree import LaneTree
from asynclane.scheduler.decoding.lanes.asynclane import AsyncLane
from asynclane.scheduler.decoding.lanes.base import LanePolicy
from asynclane.scheduler.decoding.lanes.blockwise import Blockwise
from asynclane.scheduler.decoding.lanes.parts import Parts
from asynclane.scheduler.decoding.lanes.sliding import SlidingBlock
from asynclane.scheduler.decoding.resolve import resolve
from asynclane.scheduler.decoding.vocabulary import Vocabulary
from asynclane.scheduler.lane_status import LaneSnapshot, lane_statuses
from asynclane.scheduler.memory.pages import Limits
from asynclane.scheduler.request import Request
from asynclane.scheduler.scheduler import Scheduler

from ...support.fakes import IDS, MASK, ScriptedExecutor, add, vocabulary


def shape(tree: LaneTree) -> list[tuple[str, int, int]]:
    return [(lane.role.value, lane.start, lane.end) for lane in tree.live]


class Canvas:
    """A request's lanes; `step` writes what a call committed, and lets the lanes advance.

    `_` is a mask, `w` a word, `.` a full stop, `E` an end token.
    """

    def __init__(self, length: int = 100, policy: LanePolicy | None = None, template: str = "", **params: Any) -> None:
        self.policy = policy or AsyncLane(**{"block_length": 16, "max_lanes": 4, "min_fill": 0.5, **params})
        self.tree = LaneTree(np.full(length, MASK, np.int32), MASK)
        self.tree.canvas[: len(template)] = [IDS[letter] for letter in template]
        self.policy.open(self.tree)

    def step(self, text: str) -> list[tuple[str, int, int]]:
        tree, live = self.tree, self.tree.live
        tree.canvas[: len(text)] = [IDS[letter] for letter in text]
        tokens = tree.canvas[live[0].start : live[-1].end]
        view = LaneSnapshot(live, tokens, None, self.policy.boundary, Nesting, self.policy.min_fill)
        (status,) = lane_statuses([view], vocabulary())
        statuses = status.lanes
        for lane, fact in zip(live, statuses, strict=True):
            lane.steps += 1
            lane.masks = fact.open
        self.policy.advance(tree, statuses)
        return shape(tree)


def test_blocks_follow_each_other_to_the_end_of_the_canvas() -> None:
    canvas = Canvas(40, Blockwise(16))
    assert canvas.step("w" * 15) == [("generate", 0, 16)]
    assert canvas.step("w" * 16) == [("generate", 16, 32)]
    assert canvas.step("w" * 32) == [("generate", 32, 40)]
    assert canvas.step("w" * 40) == []


def test_a_block_slides_on_by_each_position_that_commits() -> None:
    canvas = Canvas(12, SlidingBlock(4))
    assert canvas.step("_w_w") == [("generate", 0, 6)]
    assert canvas.step("ww_w") == [("generate", 2, 7)]
    assert canvas.step("ww_wwww") == [("generate", 2, 10)]
    assert canvas.step("wwwwwwwwww") == [("generate", 10, 12)], "the canvas ends"
    assert canvas.step("w" * 12) == []


def test_a_block_slides_no_further_than_an_end_token_if_the_answer_ends_there() -> None:
    for ends, lane in ((True, (1, 4)), (False, (1, 7))):
        assert Canvas(12, SlidingBlock(4, ends=ends)).step("w_wE") == [("generate", *lane)]


def test_the_summary_of_a_template_waits_for_its_other_parts() -> None:
    parts = [("refine", 0, 5), ("refine", 7, 12)]
    canvas = Canvas(18, Parts(summary_after=0.8), template="_____ww_____ww____")
    assert shape(canvas.tree) == [*parts, ("generate", 14, 18)]

    def active() -> list[bool]:
        return [lane.active for lane in canvas.tree.live]

    assert active() == [True, True, False]
    assert canvas.step("wwwwwww__w_www____") == [("refine", 7, 12), ("generate", 14, 18)]
    assert active() == [True, False], "7 of 10"
    canvas.step("wwwwwww__wwwww____")
    assert active() == [True, True], "8 of 10"
    assert canvas.step("wwwwwww__wwwww_E__") == [("refine", 7, 12), ("generate", 14, 16)], "cut after the end token"
    assert canvas.step("wwwwwwwwwwwwwwwE__") == []


def test_a_block_that_slides_may_be_bounded() -> None:
    canvas = Canvas(12, SlidingBlock(4, 4))
    assert canvas.step("_w_w") == [("generate", 0, 4)]
    assert canvas.step("ww_w") == [("generate", 2, 6)]
    assert canvas.step("wwwwww") == [("generate", 6, 10)], "as serial blocks, where all of it commits"


def test_a_fork_leaves_a_refine_lane_and_goes_on_after_the_boundary() -> None:
    canvas = Canvas()
    assert canvas.step("w_www_www.__w") == [("refine", 0, 10), ("generate", 10, 26)]
    refine, generate = canvas.tree.live
    assert (refine.masks, generate.masks) == (2, 15)
    assert (refine.id, generate.id, generate.parent) == (0, 1, 0)
    assert (canvas.tree.forks, canvas.tree.born) == (1, 2)


@pytest.mark.parametrize(
    ("params", "text", "lanes"),
    [
        pytest.param({}, "wwwwwwwww._", [("generate", 10, 26)], id="no refine lane without masks"),
        pytest.param({}, "w_w.ww_ww._", [("refine", 0, 10), ("generate", 10, 26)], id="at the last boundary"),
        pytest.param({}, "__" + "w" * 13 + ".", [("generate", 0, 16)], id="not at the last position"),
        pytest.param({"max_lanes": 1}, "w_www_www.__w", [("generate", 0, 16)], id="not above the lane limit"),
        pytest.param({}, "wwwwwwE___", [], id="an end with nothing open before it"),
        pytest.param({}, "w_w_E_www.www.__", [("generate", 0, 5)], id="not after an end"),
        pytest.param({"length": 16}, "w_ww_wwww." + "w" * 6, [("generate", 0, 16)], id="nothing left to generate"),
        pytest.param(
            {"block_length": 40, "boundary": Boundary.STRIDE, "min_fill": 0.1},
            "_" * 14 + "ww",
            [("refine", 0, 16), ("generate", 16, 56)],
            id="a stride",
        ),
    ],
)
def test_where_a_lane_forks(params: dict[str, Any], text: str, lanes: list[tuple[str, int, int]]) -> None:
    assert Canvas(**params).step(text) == lanes


def test_a_lane_forks_only_after_min_steps_calls() -> None:
    canvas = Canvas(min_steps=2)
    assert canvas.step("w_www_www.__w") == [("generate", 0, 16)]
    assert canvas.step("w_www_www.__w") == [("refine", 0, 10), ("generate", 10, 26)]


def test_a_refine_lane_has_no_successor_and_a_generate_lane_has() -> None:
    canvas = Canvas()
    canvas.step("w_www_www.__w")
    assert canvas.step("wwwwwwwww.__w") == [("generate", 10, 26)]
    assert canvas.step("w" * 26) == [("generate", 26, 42)]


def test_an_end_token_cancels_every_lane_after_it_in_the_same_commit() -> None:
    canvas = Canvas()
    canvas.step("w_www_www.__w")
    assert canvas.step("w_www_E_w.www") == [("refine", 0, 7)]
    assert canvas.tree.cancelled == 1
    assert canvas.step("wwwwwwE_w.www") == []


def test_nothing_grows_after_an_end_token() -> None:
    canvas = Canvas()
    assert canvas.step("ww_ww.w_wwww_E") == [("refine", 0, 6), ("generate", 7, 14)]
    assert canvas.step("ww_ww.wwwwwwwE") == [("refine", 0, 6)]


def test_lanes_stop_at_the_end_of_the_canvas() -> None:
    canvas = Canvas(length=20)
    assert canvas.step("w_www_wwwwwwww._") == [("refine", 0, 15), ("generate", 15, 20)]
    assert canvas.step("w_wwwwwwwwwwww.wwwww") == [("refine", 0, 15)]


def test_a_lane_starts_at_the_first_position_that_drafts_have_left_open() -> None:
    canvas = Canvas()
    assert canvas.step("w_www_www.ww_w" + "__" + "ww_w") == [("refine", 0, 10), ("generate", 12, 28)]
    assert canvas.tree.live[1].masks == 12
    canvas = Canvas(length=24)
    assert canvas.step("w" * 24) == []  # all drafted: nothing is left to generate


def test_coupled_lanes_go_on_only_once_the_prefix_is_done() -> None:
    canvas = Canvas(coupled=True)
    assert canvas.step("w_www_www.__w") == [("generate", 0, 10)]
    assert canvas.tree.forks == 1
    assert canvas.step("wwwwwwwww.__w") == [("generate", 10, 26)]


def test_without_early_stop_an_end_token_is_a_token_like_others() -> None:
    canvas = Canvas(early_stop=False)
    assert canvas.step("wwE" + "_" * 13) == [("generate", 0, 16)]
    assert canvas.step("wwE" + "w" * 13) == [("generate", 16, 32)]


def test_lanes_cover_the_canvas_left_to_right_without_gaps_in_what_is_open() -> None:
    rng = np.random.default_rng(3)
    letters = np.array(list("w.E,"))
    for _ in range(80):
        length = int(rng.integers(1, 90))
        canvas = Canvas(length, block_length=int(rng.integers(1, 24)), min_fill=float(rng.random()), early_stop=False)
        text = ["_"] * length
        while canvas.tree.live:
            for lane in canvas.tree.live:
                for position in range(lane.start, lane.end):
                    if text[position] == "_" and rng.random() < 0.3:
                        text[position] = str(rng.choice(letters, p=[0.7, 0.2, 0.05, 0.05]))
            canvas.step("".join(text))
            live = canvas.tree.live
            for left, right in itertools.pairwise(live):
                assert left.start < left.end <= right.start
                assert "_" not in text[left.end : right.start], "an open position that no lane works on"
            if live:
                assert "_" not in text[: live[0].start]
        assert "_" not in text


def test_with_a_tokenizer_that_ends_no_sentence_lanes_fork_at_settled_proposals() -> None:
    bare = Vocabulary(["", "", "a", "b"], mask_id=0, end_ids=[1])
    turns = itertools.count()  # each lane's last quarter keeps changing
    executor = ScriptedExecutor(lambda slot, at: (2 if (at - 5) % 32 < 24 else 2 + next(turns) % 2, 0.5))
    scheduler = Scheduler(Limits(1, 64, 8, 512, 512, 1), bare)
    sequence = add(scheduler, Request(0, np.full(5, 3, np.int32), 200, resolve("asynclane", {}, 200)))
    while (plan := scheduler.plan()) is not None:
        scheduler.commit(executor.execute(plan))
    assert sequence.tree.forks > 0
