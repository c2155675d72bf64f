"""The range that each cache policy computes, step by step."""

from __future__ import annotations

import numpy as np
import pytest

from asynclane.scheduler.decoding.cache import (
    CACHES,
    CachePolicy,
    Canvas,
    ComputeRange,
    Progress,
    RequestExtent,
    StepConfidence,
)
from asynclane.scheduler.decoding.cache.d2 import density
from asynclane.scheduler.decoding.params import Params
from asynclane.scheduler.decoding.resolve import resolve
from asynclane.scheduler.memory.pages import Limits
from asynclane.scheduler.request import Request
from asynclane.scheduler.scheduler import Scheduler

from ...support.fakes import IDS, MASK, add, vocabulary

START = RequestExtent(first=50, last=82, end=178, frontier=50)
WITHIN = RequestExtent(first=50, last=82, end=178, frontier=60)
NEXT = RequestExtent(first=82, last=114, end=178, frontier=82)


def made(name: str, **params: object) -> CachePolicy:
    return CACHES[name](Params({**CACHES[name].DEFAULTS, **params}))


def compact(refresh_every: int, **params: object) -> CachePolicy:
    return made("compact", refresh_every=refresh_every, **params)


def finished(delay: int, interval: int) -> CachePolicy:
    return made("finished", cache_delay=delay, refresh_interval=interval)


def steps(cache: CachePolicy, *extents: RequestExtent, finished: int = 0, forks: int = 0) -> list[ComputeRange]:
    ranges = []
    for extent in extents:
        range_ = cache.compute_range(extent)
        assert cache.compute_range(extent) == range_, "it must not change state"
        cache.computed(range_, extent, Progress(finished, forks, frontier=extent.frontier + 5))
        ranges.append(range_)
    return ranges


FULL, AGAIN = ComputeRange(0, 178, 178), ComputeRange(0, 178, 178, refresh=True)


@pytest.mark.parametrize(
    ("name", "ranges"),
    [
        ("none", [FULL] * 4),
        ("prefix", [FULL, ComputeRange(50, 178, 178), AGAIN, ComputeRange(82, 178, 178)]),
        ("dual", [FULL, ComputeRange(50, 82, 178), AGAIN, ComputeRange(82, 114, 178)]),  # the block alone sees all
    ],
)
def test_a_block_starts_with_a_full_pass(name: str, ranges: list[ComputeRange]) -> None:
    assert steps(made(name), START, WITHIN, NEXT, NEXT) == ranges


def starts(cache: CachePolicy, *extents: RequestExtent, **progress: int) -> list[int]:
    return [range_.start for range_ in steps(cache, *extents, **progress)]


def test_a_position_settles_one_call_after_its_prefix_was_committed() -> None:
    assert starts(compact(0), START, WITHIN, NEXT, NEXT) == [0, 50, 60, 82]
    assert starts(compact(0, settle=False), WITHIN, WITHIN) == [0, WITHIN.frontier + 5], "cached at once"


def test_a_refresh_comes_after_so_many_finished_lanes_forks_or_steps_and_starts_at_the_prompt() -> None:
    assert starts(compact(2), *[WITHIN] * 6, finished=1) == [0, 60, 0, 60, 0, 60]
    by_forks = steps(compact(2, refresh_on="forks"), *[WITHIN] * 5, forks=1, finished=7)
    assert [range_.refresh for range_ in by_forks] == [False, False, True, False, True]
    by_steps = steps(compact(3, refresh_on="steps"), *[WITHIN] * 7)
    assert [range_.refresh for range_ in by_steps] == [False, False, False, True, False, False, True]


def test_without_reuse_a_full_pass_drives_no_lane_and_its_call_follows() -> None:
    ranges = steps(compact(2, reuse=False), *[WITHIN] * 6, finished=1)
    assert [range_.drives for range_ in ranges] == [False, True, True, False, True, True]
    assert all(range_.start == 0 for range_ in ranges if not range_.drives)
    ranges = steps(compact(1, refresh_on="steps", reuse=False), *[WITHIN] * 6)
    assert [range_.drives for range_ in ranges] == [False, True] * 3, "a full pass does not bring on the next one"


def test_a_refresh_stops_at_the_look_ahead_and_never_computes_the_unused_tail() -> None:
    for range_ in steps(compact(1), START, WITHIN, NEXT, finished=1):
        assert range_.end == range_.visible <= START.end


BEHIND = RequestExtent(first=114, last=146, end=178, frontier=114)


def after(start: int) -> ComputeRange:
    return ComputeRange(start, 178, 178)


def test_a_finished_block_is_cached_so_many_calls_later_and_full_passes_come_before() -> None:
    """The prompt of 50 was finished before the first call, the block up to 82 is after the fourth."""
    extents = START, WITHIN, WITHIN, WITHIN, NEXT, NEXT, NEXT, NEXT, NEXT
    got = {delay: steps(finished(delay, 10_000), *extents) for delay in (0, 1, 2, 10_000)}
    assert got[0] == [FULL, *[after(50)] * 4, *[after(82)] * 4]
    assert got[1] == [FULL, *[after(50)] * 3, AGAIN, after(50), *[after(82)] * 3]
    assert got[2] == [FULL, FULL, *[after(50)] * 2, AGAIN, AGAIN, after(50), *[after(82)] * 2]
    assert got[10_000] == [FULL] * 9


def test_a_block_finished_while_another_waits_begins_to_wait_when_that_one_is_cached() -> None:
    extents = START, WITHIN, NEXT, BEHIND, BEHIND, BEHIND, BEHIND
    assert steps(finished(1, 10_000), *extents) == [
        FULL,
        after(50),
        AGAIN,  # the block up to 82 waits
        after(50),  # and is cached, and that up to 114 waits
        after(82),  # and is cached
        after(114),
        after(114),
    ]
    assert steps(finished(2, 10_000), *extents) == [FULL, FULL, AGAIN, AGAIN, after(50), AGAIN, after(82)]


def test_a_full_pass_comes_at_intervals_unless_a_block_is_cached() -> None:
    extents = START, WITHIN, WITHIN, WITHIN, WITHIN, NEXT, NEXT, NEXT
    assert steps(finished(0, 3), *extents) == [
        *[FULL, after(50), AGAIN],
        *[after(50), after(50), after(50)],  # the sixth caches a block
        *[after(82), after(82)],
    ]
    assert steps(finished(10_000, 3), *extents) == [FULL] * 8


PROMPT, BLOCK = 10, 20


def extent(canvas: str, block: int = 0, suffix: int = 0) -> RequestExtent:
    """With block number `block` as its lane: "_" is open, "w" is not."""
    tokens = np.array([MASK if letter == "_" else IDS[letter] for letter in canvas], np.int32)
    start, end = PROMPT + block * BLOCK, PROMPT + len(canvas)
    frontier = PROMPT + (canvas + "_").index("_")
    return RequestExtent(start, min(start + BLOCK, end), end + suffix, frontier, Canvas(PROMPT, tokens, MASK))


def positions_of(policy: CachePolicy, *extents: RequestExtent) -> list[str]:
    """The positions that each step computes: "P" for the prompt, then a letter of a canvas position or "." for none."""
    seen = []
    for before in extents:
        range_ = policy.compute_range(before)
        assert policy.compute_range(before) == range_, "it must not change state"
        policy.computed(range_, before, Progress(0, 0, before.frontier))
        letters = ["."] * len(before.canvas.tokens)
        for start, end in range_.stretches:
            for at in range(max(start - PROMPT, 0), min(end - PROMPT, len(letters))):
                letters[at] = "w" if before.canvas.tokens[at] != MASK else "_"
        seen.append("P" * (range_.start == 0) + "".join(letters))
    return seen


def test_a_token_is_computed_once_more_in_the_step_after_it_committed() -> None:
    first, second, third = "_" * 30, "____w" + "_" * 25, "wwwwwwwww" + "_" * 21
    assert positions_of(made("delayed", reload_every=9), *map(extent, (first, second, third, third))) == [
        "P" + first,
        second,
        third,
        "........." + "_" * 21,
    ]


def test_a_cached_position_between_computed_ones_is_computed_and_a_run_of_them_is_not() -> None:
    some = "ww_www_wwww_" + "_" * 18
    assert positions_of(made("delayed", reload_every=9), *map(extent, (some, some)))[1] == ".._www_...." + "_" * 19


def test_everything_is_computed_every_so_many_steps_and_when_a_block_starts() -> None:
    for reload_every, blocks, full in ((3, (0,) * 7, "P--P--P"), (9, (0, 0, 1, 1), "P-P-")):
        extents = [extent("w" * 20 + "_" * 20, block) for block in blocks]
        found = positions_of(made("delayed", reload_every=reload_every), *extents)
        assert ["P" if letters[0] == "P" else "-" for letters in found] == [*full]


def test_certainty_density_is_high_beside_what_is_decoded() -> None:
    """In a canvas, a position before it counts as decoded, one after it as the last."""
    decoded = np.array([0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0], np.bool_)
    shares = density(decoded, 2.0)
    assert shares[0] > shares[1] > shares[2] > shares[3] < shares[5] < shares[6]
    assert shares[0] == pytest.approx(0.4, abs=0.02)
    assert density(~decoded, 2.0)[11] > density(decoded, 2.0)[11]
    assert np.allclose(density(np.ones(5, np.bool_), 10.0), 1)


def test_the_likeliest_open_positions_are_computed_and_what_has_just_committed() -> None:
    policy, first = made("d2", candidates=2), extent("_" * 40)
    policy.compute_range(first)
    confidence = np.linspace(0.02, 0.01, BLOCK)
    confidence[[9, 15]] = 0.9, 0.8
    policy.observe(StepConfidence(np.arange(PROMPT, PROMPT + BLOCK), confidence))
    policy.computed(policy.compute_range(first), first, Progress(0, 0, PROMPT))
    then = extent("_____w" + "_" * 34)
    (letters,) = positions_of(policy, then)
    assert letters == "_....w____....._" + "." * 24  # position 0 because a lane must be able to commit


def test_candidates_after_the_block_end_with_the_block_of_the_last_that_is_wanted() -> None:
    policy = made("d2", candidates=24)
    first, then = positions_of(policy, *[extent("_" * 60)] * 2)
    assert first == "P" + "_" * 60
    assert then == "_" * 24 + "." * 36
    few = made("d2", candidates=24)
    assert positions_of(few, *[extent("w" * 16 + "_" * 44)] * 2)[1] == "." * 16 + "_" * 24 + "." * 20


def test_prompt_and_response_are_computed_at_intervals_of_their_own() -> None:
    policy = made("interval", prompt_every=6, response_every=3, response_share=0.0)
    canvas = "w" * 20 + "_" * 20
    whole, response, lane = "P" + canvas, canvas, "." * 20 + "_" * 20
    assert positions_of(policy, *[extent(canvas, 1)] * 8) == [whole, lane, lane, response, lane, lane, whole, lane]


def test_in_between_a_share_of_the_response_is_computed_the_nearest_to_what_changed() -> None:
    policy = made("interval", prompt_every=50, response_every=6, response_share=0.5)
    before, after = "w" * 32 + "_" * 8, "w" * 32 + "____w___"
    assert positions_of(policy, extent(before, 1), extent(after, 1))[1] == "." * 20 + "w" * 12 + "____w___"


def test_a_position_is_computed_until_a_step_has_read_its_final_token() -> None:
    before, after = "w" * 10 + "_____" + "w" * 10 + "_____", "w" * 10 + "w____" + "w" * 10 + "_____"
    canvases = [extent(text) for text in ("_" * 30, before, before, after, after)]
    assert positions_of(made("settled"), *canvases) == [
        "P" + "_" * 30,
        before,
        "." * 10 + "_____" + "." * 10 + "_____",
        "." * 10 + "w____" + "." * 10 + "_____",
        "." * 11 + "____" + "." * 10 + "_____",
    ]


def test_what_a_sliding_block_has_passed_is_computed_again_and_everything_after_so_many_commits() -> None:
    cache, wide = (made("dsb", block_length=4, prefix_window=window) for window in (1, 6))
    canvases = ["_" * 12, "w_____" + "_" * 6, "www___" + "_" * 6, "wwww__" + "_" * 6, "wwwww_" + "_" * 6]
    extents = [
        RequestExtent(50 + done, 54 + done, 62, 50 + done, extent(text).canvas)
        for text in canvases
        for done in [text.index("_")]
    ]
    ranges = steps(cache, *extents)
    assert [(range_.start, range_.end) for range_ in ranges] == [(0, 62), (50, 55), (51, 57), (0, 62), (54, 59)]
    assert [range_.refresh for range_ in ranges] == [False, False, False, True, False]
    assert {range_.visible for range_ in ranges} == {62}
    assert [range_.start for range_ in steps(wide, *extents[:3])] == [0, 45, 47]


def test_a_window_sees_what_is_decoded_and_the_first_masks_of_its_cycle() -> None:
    policy = made("window", cycle=4, window_tokens=10, active_tokens=5)
    canvases = ["_" * 40, "_w" + "_" * 38, "_ww" + "_" * 37, "www" + "_" * 37, "wwww" + "_" * 36]
    assert positions_of(policy, *map(extent, canvases)) == [
        "P" + canvases[0],
        "_w____" + "." * 34,
        "_ww____" + "." * 33,
        "www_____" + "." * 32,
        "P" + canvases[4],
    ]
    policy = made("window", cycle=4, window_tokens=10, active_tokens=5)
    ranges = []
    for canvas in canvases[:4]:
        ranges.append(policy.compute_range(extent(canvas)))
        policy.computed(ranges[-1], extent(canvas), Progress(0, 0, PROMPT))
    assert [range_.visible - PROMPT for range_ in ranges] == [40, 11, 11, 11]


def test_a_window_sees_a_suffix_and_what_has_committed_far_ahead() -> None:
    for canvas, suffix, visible in (("_" * 40, 3, 43), ("_" * 30 + "w" + "_" * 9, 0, 31)):
        policy, before = made("window", cycle=4, window_tokens=10, active_tokens=5), extent(canvas, suffix=suffix)
        policy.computed(policy.compute_range(before), before, Progress(0, 0, PROMPT))
        assert policy.compute_range(before).visible - PROMPT == visible


@pytest.mark.parametrize(
    ("lane", "stretches"),
    [
        ((22, 25), [(10, 20), (22, 25), (30, 40), (50, 60)]),
        ((15, 35), [(10, 40), (50, 60)]),
        ((44, 80), [(10, 20), (30, 40), (44, 80)]),
        ((0, 12), [(0, 20), (30, 40), (50, 60)]),
        ((2, 4), [(2, 4), (10, 20), (30, 40), (50, 60)]),
    ],
)
def test_a_window_can_be_made_to_cover_a_lane(lane: tuple[int, int], stretches: list[tuple[int, int]]) -> None:
    range_ = ComputeRange(10, 60, 62, gaps=((20, 30), (40, 50)))
    wider = range_.covering(*lane)
    assert list(wider.stretches) == stretches
    assert wider.visible == max(62, lane[1])


def entropies(policy: CachePolicy, *canvases: tuple[str, dict[int, float]]) -> list[str]:
    """The positions that each step computes, of a lane of 20; after it proposals have the entropies given, or 0.1."""
    found = []
    for canvas, wide in canvases:
        before, entropy = extent(canvas), np.full(BLOCK, 0.1, np.float32)
        for position, nats in wide.items():
            entropy[position] = nats
        policy.observe(StepConfidence(np.arange(PROMPT, PROMPT + BLOCK), np.ones(BLOCK), entropy))
        found += positions_of(policy, before)
    return found


def test_open_positions_and_the_last_commits_are_computed_and_everything_after_an_uncertain_one() -> None:
    open_, after = "_" * 20, "_" * 10
    canvases = [
        (open_ + after, {}),
        ("w" * 6 + "_" * 14 + after, {8: 0.5}),  # 0 to 5 have committed: 4 and 5 are the last
        ("w" * 6 + "__w" + "_" * 11 + after, {}),  # 8 was uncertain
        ("w" * 6 + "__w" + "_" * 10 + "w" + after, {10: 9.0}),  # the last are 8 and 19
        ("w" * 7 + "_w" + "_" * 10 + "w" + after, {}),  # 10 is open still: what it might be does not matter
    ]
    assert entropies(made("entropy", entropy_limit=0.5, recent_tokens=2), *canvases) == [
        "P" + open_ + after,
        "....ww" + "_" * 14 + "." * 10,
        "P" + "w" * 6 + "__w" + "_" * 11 + after,
        "......__w" + "_" * 10 + "w" + "." * 10,
        "......w_w" + "_" * 10 + "w" + "." * 10,  # 8 bridges a gap
    ]


@pytest.mark.parametrize(
    ("limit", "recent", "second"), [(0.0, 0, "P" + "w" * 8), (0.2, 0, "." * 8), (0.2, 99, "w" * 8)]
)
def test_the_limits_of_an_entropy_cache(limit: float, recent: int, second: str) -> None:
    """No cache, the open part of a block without a refresh in it, or all that has committed."""
    policy = made("entropy", entropy_limit=limit, recent_tokens=recent)
    rest = "_" * 12 + ("_" if limit == 0 else ".") * 10
    assert entropies(policy, ("_" * 30, {}), ("w" * 8 + "_" * 22, {}))[1] == second + rest


def test_an_entropy_cache_never_passes_more_often_with_a_higher_limit_and_with_a_block() -> None:
    trace = [("w" * count + "_" * (30 - count), {count: 0.1 * (count % 7)}) for count in range(18)]
    passes = [
        sum(one.startswith("P") for one in entropies(made("entropy", entropy_limit=limit), *trace))
        for limit in (0.0, 0.15, 0.35, 0.55, 1.0)
    ]
    assert passes == sorted(passes, reverse=True)
    assert (passes[0], passes[-1]) == (18, 1)
    policy = made("entropy", entropy_limit=20.0)
    found = positions_of(policy, *[extent("w" * 20 * block + "_" * 20 * (3 - block), block) for block in (1, 1, 2, 2)])
    assert [one[0] for one in found] == ["P", ".", "P", "."]


def drifting(policy: CachePolicy, *canvases: tuple[str, dict[int, float]]) -> list[str]:
    """The positions that each step computes, of a lane of 20; after it proposals have the confidence given, or 0.5."""
    found = []
    for canvas, given in canvases:
        before = extent(canvas)
        sure = [given.get(at, 0.5) for at in range(BLOCK)]
        policy.observe(StepConfidence(np.arange(PROMPT, PROMPT + BLOCK), np.array(sure)))
        found += positions_of(policy, before)
    return found


def test_an_elastic_cache_computes_the_open_positions_and_everything_after_a_drift() -> None:
    open_, after, low = "_" * 20, "_" * 10, dict.fromkeys(range(6, 13), 0.01)
    canvases = [
        (open_ + after, {}),
        ("w" * 6 + "_" * 14 + after, {0: 0.9}),  # what has committed does not count
        ("w" * 6 + "_" * 14 + after, low),  # cosine 0.72
        ("w" * 6 + "_" * 14 + after, low),
        ("w" * 6 + "_" * 14 + after, low),
    ]
    lane = "." * 6 + "_" * 14 + "." * 10
    assert drifting(made("elastic", least_similarity=0.75), *canvases) == [
        "P" + open_ + after,
        "w" * 6 + "_" * 14 + "." * 10,
        lane,
        "P" + "w" * 6 + "_" * 14 + after,
        lane,
    ]
    assert drifting(made("elastic", least_similarity=0.7), *canvases)[3:] == [lane, lane]


def test_where_the_end_was_predicted_counts_until_a_step_shows_otherwise() -> None:
    limits = Limits(slots=1, pages=9, page_size=16, step_tokens=128, max_model_len=128, max_queue=1)
    decoder = resolve("asynclane", {"cache": "d2"}, 64)
    sequence = add(Scheduler(limits, vocabulary()), Request(0, np.full(4, 6, np.int32), 64, decoder))
    sequence.predict_end(44, ComputeRange(0, 68, 68))
    assert sequence.predicted_end == 40
    sequence.predict_end(None, ComputeRange(4, 68, 68, gaps=((30, 50),)))
    assert sequence.predicted_end == 40
    sequence.predict_end(20, ComputeRange(4, 68, 68, gaps=((30, 50),)))
    assert sequence.predicted_end == 16
    sequence.predict_end(None, ComputeRange(4, 68, 68))
    assert sequence.predicted_end > 64


def test_focus_computes_a_block_whole_at_first_and_then_lets_few_open_positions_pass_all_layers() -> None:
    """`passed` has the open positions that go on, of how many, and the committed ones."""
    policy, passed = made("focus"), []
    blocks = ("_" * 20 + "_" * 10, 0), ("__www" + "_" * 15 + "_" * 10, 0), ("_wwww" + "_" * 15 + "_" * 10, 0)
    for canvas, block in (*blocks, ("w" * 20 + "_" * 10, 1), ("w" * 21 + "_" * 9, 1)):
        before = extent(canvas, block)
        before = before._replace(end=before.last, frontier=PROMPT + block * BLOCK)
        range_ = policy.compute_range(before)
        again = policy.compute_range(before)
        assert str(again) == str(range_), "it must not change state"
        policy.computed(range_, before, Progress(0, 0, before.frontier))
        selection, whole = range_.selection, {*range(range_.start, range_.end)}
        if selection is None:
            passed.append((range_.start, range_.end, "all"))
            continue
        open_ = {PROMPT + at for at, letter in enumerate(canvas) if letter == "_"} & whole
        assert {*selection.candidates.tolist()} == open_
        goes_on = whole - open_ - {*selection.cached.tolist()}
        passed.append((selection.keep, len(open_), sorted(at - PROMPT for at in goes_on)))
    first, last = PROMPT + BLOCK, PROMPT + 30
    assert passed == [
        (0, first, "all"),
        (5, 17, [2, 3, 4]),  # 3 tokens a step: 4.5 positions
        (3, 16, [1]),  # (3 + 1) / 2 a step
        (PROMPT, last, "all"),  # the full block once more: its keys are then exact
        (8, 9, [20]),  # 3, 1, 16 and 1, so 5.25 a step
    ]


def test_what_does_not_change_around_a_canvas_is_not_computed_again_by_focus() -> None:
    """The prompt's tail in the first block of a network, and the positions after the canvas in the last."""
    policy = made("focus", focus_alpha=4096)
    canvas = Canvas(PROMPT, np.full(10, MASK, np.int32), MASK)
    before = RequestExtent(PROMPT, PROMPT + 10, PROMPT + 16, PROMPT - 4, canvas)
    policy.computed(policy.compute_range(before), before, Progress(0, 0, PROMPT - 4))
    selection = policy.compute_range(before).selection
    assert selection is not None
    assert selection.candidates.tolist() == [*range(PROMPT, PROMPT + 10)]
    assert selection.cached.tolist() == [*range(PROMPT - 4, PROMPT), *range(PROMPT + 10, PROMPT + 16)]
