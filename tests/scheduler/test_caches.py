"""Which range each cache computes, step by step."""

from __future__ import annotations

from asynclane.scheduler.decoding.cache import (
    CachePolicy,
    Compact,
    ComputeRange,
    Dual,
    Finished,
    NoCache,
    Prefix,
    Progress,
    RequestExtent,
)

START = RequestExtent(first=50, last=82, end=178, frontier=50)
WITHIN = RequestExtent(first=50, last=82, end=178, frontier=60)
NEXT = RequestExtent(first=82, last=114, end=178, frontier=82)


def steps(cache: CachePolicy, *reaches: RequestExtent, finished: int = 0, forks: int = 0) -> list[ComputeRange]:
    windows = []
    for reach in reaches:
        window = cache.compute_range(reach)
        assert cache.compute_range(reach) == window, "asking must change nothing"
        cache.computed(window, reach, Progress(finished, forks, frontier=reach.frontier + 5))
        windows.append(window)
    return windows


def test_no_cache_computes_everything_every_time() -> None:
    assert steps(NoCache(), START, WITHIN, NEXT) == [ComputeRange(0, 178, 178)] * 3


def test_the_prefix_cache_starts_a_block_with_a_full_pass() -> None:
    assert steps(Prefix(), START, WITHIN, NEXT, NEXT) == [
        ComputeRange(0, 178, 178),
        ComputeRange(50, 178, 178),
        ComputeRange(0, 178, 178, refresh=True),
        ComputeRange(82, 178, 178),
    ]


def test_the_dual_cache_computes_the_block_alone_and_sees_all() -> None:
    assert steps(Dual(), START, WITHIN, NEXT, NEXT) == [
        ComputeRange(0, 178, 178),
        ComputeRange(50, 82, 178),
        ComputeRange(0, 178, 178, refresh=True),
        ComputeRange(82, 114, 178),
    ]


def test_a_position_settles_one_call_after_its_prefix_was_committed() -> None:
    starts = [window.start for window in steps(Compact(refresh_every=0), START, WITHIN, NEXT, NEXT)]
    assert starts == [0, 50, 60, 82]


def test_a_refresh_comes_after_so_many_finished_lanes_and_starts_at_the_prompt() -> None:
    starts = [window.start for window in steps(Compact(refresh_every=2), *[WITHIN] * 6, finished=1)]
    assert starts == [0, 60, 0, 60, 0, 60]


def test_forks_and_steps_can_ask_for_a_refresh_too() -> None:
    by_forks = steps(Compact(2, refresh_on="forks"), *[WITHIN] * 5, forks=1, finished=7)
    assert [window.refresh for window in by_forks] == [False, False, True, False, True]
    by_steps = steps(Compact(3, refresh_on="steps"), *[WITHIN] * 7)
    assert [window.refresh for window in by_steps] == [False, False, False, True, False, False, True]


def test_without_reuse_a_full_pass_drives_no_lane_and_its_call_follows() -> None:
    windows = steps(Compact(2, reuse=False), *[WITHIN] * 6, finished=1)
    assert [window.drives for window in windows] == [False, True, True, False, True, True]
    assert all(window.start == 0 for window in windows if not window.drives)


def test_without_settling_what_was_committed_is_cached_at_once() -> None:
    first, second = steps(Compact(0, settle=False), WITHIN, WITHIN)
    assert (first.start, second.start) == (0, WITHIN.frontier + 5)


def test_a_refresh_stops_at_the_look_ahead_and_never_computes_the_unused_tail() -> None:
    for window in steps(Compact(1), START, WITHIN, NEXT, finished=1):
        assert window.end == window.visible <= START.end


def test_a_pass_for_the_cache_alone_does_not_bring_on_the_next_one() -> None:
    windows = steps(Compact(1, refresh_on="steps", reuse=False), *[WITHIN] * 6)
    assert [window.drives for window in windows] == [False, True, False, True, False, True]


BEHIND = RequestExtent(first=114, last=146, end=178, frontier=114)
FULL, AGAIN = ComputeRange(0, 178, 178), ComputeRange(0, 178, 178, refresh=True)


def after(start: int) -> ComputeRange:
    return ComputeRange(start, 178, 178)


def test_a_finished_block_is_cached_so_many_calls_later_and_full_passes_come_before() -> None:
    """The prompt of 50 was finished before the first call, the block up to 82 is after the fourth."""
    reaches = START, WITHIN, WITHIN, WITHIN, NEXT, NEXT, NEXT, NEXT, NEXT
    got = {delay: steps(Finished(delay, 10_000), *reaches) for delay in (0, 1, 2, 10_000)}
    assert got[0] == [FULL, *[after(50)] * 4, *[after(82)] * 4]
    assert got[1] == [FULL, *[after(50)] * 3, AGAIN, after(50), *[after(82)] * 3]
    assert got[2] == [FULL, FULL, *[after(50)] * 2, AGAIN, AGAIN, after(50), *[after(82)] * 2]
    assert got[10_000] == [FULL] * 9


def test_a_block_finished_while_another_waits_begins_to_wait_when_that_one_is_cached() -> None:
    reaches = START, WITHIN, NEXT, BEHIND, BEHIND, BEHIND, BEHIND
    assert steps(Finished(1, 10_000), *reaches) == [
        FULL,
        after(50),
        AGAIN,  # the block up to 82 waits
        after(50),  # and is cached, and that up to 114 waits
        after(82),  # and is cached
        after(114),
        after(114),
    ]
    assert steps(Finished(2, 10_000), *reaches) == [FULL, FULL, AGAIN, AGAIN, after(50), AGAIN, after(82)]


def test_a_full_pass_comes_at_intervals_unless_a_block_is_cached() -> None:
    reaches = START, WITHIN, WITHIN, WITHIN, WITHIN, NEXT, NEXT, NEXT
    assert steps(Finished(0, 3), *reaches) == [
        *[FULL, after(50), AGAIN],
        *[after(50), after(50), after(50)],  # the sixth caches a block
        *[after(82), after(82)],
    ]
    assert steps(Finished(10_000, 3), *reaches) == [FULL] * 8
