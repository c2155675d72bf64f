"""How lanes are born, forked, finished and cancelled, on steps written by hand."""

from __future__ import annotations

from asynclane.scheduler.policies import AsyncLane, Blockwise
from asynclane.scheduler.policies.base import ABSENT, LaneFacts
from asynclane.scheduler.tree import LaneTree, Role


def after(
    open_: int, fork_at: int = ABSENT, open_to_fork: int = 0, end_at: int = ABSENT, open_to_end: int = 0
) -> LaneFacts:
    return LaneFacts(open_, fork_at, open_to_fork, end_at, open_to_end)


def shape(tree: LaneTree) -> list[tuple[str, int, int]]:
    return [(lane.role.value, lane.start, lane.end) for lane in tree.live]


def lanes(length: int = 100, block: int = 16, limit: int = 4) -> tuple[AsyncLane, LaneTree]:
    policy = AsyncLane(block_length=block, max_lanes=limit, min_fill=0.5)
    return policy, LaneTree(policy.open(length), length)


def test_blocks_follow_each_other_to_the_end_of_the_canvas() -> None:
    policy = Blockwise(16)
    tree = LaneTree(policy.open(40), 40)
    seen = []
    while tree.live:
        seen += shape(tree)
        policy.advance(tree, [after(1)])
        assert len(tree.live) == 1
        policy.advance(tree, [after(0)])
    assert seen == [("generate", 0, 16), ("generate", 16, 32), ("generate", 32, 40)]


def test_a_fork_leaves_a_refine_lane_and_goes_on_behind_the_delimiter() -> None:
    policy, tree = lanes()
    policy.advance(tree, [after(5, fork_at=9, open_to_fork=2)])
    assert shape(tree) == [("refine", 0, 10), ("generate", 10, 26)]
    assert tree.live[1].masks == 13  # three open ones inherited, ten new
    assert (tree.forks, tree.born) == (1, 2)


def test_a_prefix_without_masks_needs_no_refine_lane() -> None:
    policy, tree = lanes()
    policy.advance(tree, [after(3, fork_at=9)])
    assert shape(tree) == [("generate", 10, 26)]


def test_the_lane_limit_holds() -> None:
    policy, tree = lanes(limit=1)
    policy.advance(tree, [after(5, fork_at=9, open_to_fork=2)])
    assert shape(tree) == [("generate", 0, 16)]


def test_a_refine_lane_has_no_successor_and_a_generate_lane_has() -> None:
    policy, tree = lanes()
    policy.advance(tree, [after(5, fork_at=9, open_to_fork=2)])
    policy.advance(tree, [after(0), after(4)])
    assert shape(tree) == [("generate", 10, 26)]
    policy.advance(tree, [after(0)])
    assert shape(tree) == [("generate", 26, 42)]


def test_an_end_token_cancels_every_lane_behind_it() -> None:
    policy, tree = lanes()
    policy.advance(tree, [after(5, fork_at=9, open_to_fork=2)])
    policy.advance(tree, [after(2, end_at=6, open_to_end=1), after(4)])
    assert shape(tree) == [("refine", 0, 7)]
    assert tree.cancelled == 1
    policy.advance(tree, [after(0, end_at=6)])
    assert not tree.live


def test_an_end_token_with_nothing_open_before_it_finishes_at_once() -> None:
    policy, tree = lanes()
    policy.advance(tree, [after(9, end_at=6, open_to_end=0)])
    assert not tree.live


def test_nothing_grows_behind_an_end_token() -> None:
    policy, tree = lanes()
    policy.advance(tree, [after(8, fork_at=5, open_to_fork=2, end_at=12, open_to_end=4)])
    assert shape(tree) == [("refine", 0, 6), ("generate", 6, 13)]
    policy.advance(tree, [after(1), after(0, end_at=12)])
    assert shape(tree) == [("refine", 0, 6)]


def test_a_delimiter_behind_the_end_token_forks_nothing() -> None:
    policy, tree = lanes()
    policy.advance(tree, [after(8, fork_at=13, open_to_fork=6, end_at=4, open_to_end=2)])
    assert shape(tree) == [("generate", 0, 5)]


def test_a_fork_with_nothing_left_to_generate_does_not_happen() -> None:
    policy, tree = lanes(length=16)
    policy.advance(tree, [after(2, fork_at=9, open_to_fork=2)])
    assert shape(tree) == [("generate", 0, 16)]


def test_lanes_stop_at_the_end_of_the_canvas() -> None:
    policy, tree = lanes(length=20)
    policy.advance(tree, [after(3, fork_at=14, open_to_fork=3)])
    assert shape(tree) == [("refine", 0, 15), ("generate", 15, 20)]
    policy.advance(tree, [after(1), after(0)])
    assert shape(tree) == [("refine", 0, 15)]
    assert tree.live[0].role is Role.REFINE
