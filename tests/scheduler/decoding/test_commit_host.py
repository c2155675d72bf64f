"""The decisions of each host rule on views that are written down here, by the numbers of its source."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from asynclane.kernels.common import noise
from asynclane.scheduler.decoding.commit import HOST_RULES
from asynclane.scheduler.decoding.commit.base import CommitDecision, HostCommitRule, Lanes, Ranges, StepView
from asynclane.scheduler.decoding.commit.host.daedal import Daedal
from asynclane.scheduler.decoding.commit.host.learn2pd import WINDOW, Filter, Learn2PD
from asynclane.scheduler.decoding.commit.host.psd import PSD
from asynclane.scheduler.decoding.commit.host.s2d2 import S2D2, Features, Routing
from asynclane.scheduler.decoding.commit.segments import Segments
from asynclane.scheduler.decoding.commit.shared import forecast
from asynclane.scheduler.decoding.commit.shared.noise import ACCEPT, RESAMPLE, uniform
from asynclane.scheduler.decoding.commit.shared.verification import Verified
from asynclane.scheduler.decoding.commit.shared.weights import product
from asynclane.scheduler.decoding.lane_tree import Lane, LaneTree, Role
from asynclane.scheduler.decoding.params import Params
from asynclane.scheduler.request import Outcome

from ...support.driver import Spec, run
from ...support.fakes import END, MASK, ScriptedExecutor, vocabulary
from ...support.kernel_cases import draws_of
from ...support.scale import ALL

VOCABULARY = 20
TOKEN = 5  # proposed where nothing else is said
LEARNT = ("ce", "learn2pd", "tspd")


def rule_of(name: str, length: int = 256, **params: object) -> HostCommitRule:
    return HOST_RULES[name](Params({"block_length": length, **HOST_RULES[name].DEFAULTS, **params}), length)


def view(
    confidence: Sequence[float],
    tokens: Sequence[int] | None = None,
    canvas: np.ndarray | None = None,
    *,
    block: int | None = None,
    role: Role = Role.GENERATE,
    forwards: int = 0,
    second: int = VOCABULARY - 1,
    ranks: int = 2,
) -> StepView:
    """One lane from position 0 to `block`, look-ahead after it. Each distribution is the `confidence` of its token and,
    for the rest, the token `second`."""
    size, likely = len(confidence), np.array(confidence)
    proposed = np.full(size, TOKEN, np.int32) if tokens is None else np.array(tokens, np.int32)
    logprobs = np.log(np.stack((likely, 1 - likely), 1))
    lane = Lane(0, None, role, 0, block or size, block or size, steps=forwards)
    before = np.full(size, MASK, np.int32) if canvas is None else canvas
    bounds = np.zeros(1, np.intp), np.array([lane.end])
    return StepView(
        canvases=[before],
        mask_id=MASK,
        positions=np.arange(size),
        ranges=Ranges([slice(0, size)], None),
        canvas_tokens=before.copy(),
        tokens=proposed,
        confidence=likely,
        entropy=-np.sum(np.exp(logprobs) * logprobs, axis=1),
        ranked=np.stack((proposed, np.full(size, second)), 1).astype(np.int32)[:, :ranks],
        logprobs=logprobs[:, :ranks].astype(np.float32),
        requests=Segments(np.zeros(1, np.intp), np.array([size]), size),
        lanes=Lanes([lane], bounds, np.zeros(1, np.intp), np.ones(1, np.bool_), size),
        ends=np.arange(VOCABULARY) == END,
        steps=np.array([forwards]),
    )


def decide(rule: HostCommitRule, found: StepView) -> CommitDecision:
    return type(rule).choose([rule], found)


@dataclass
class Canvas:
    """A canvas of one lane up to `block`, which a rule fills step by step."""

    length: int
    block: int
    role: Role = Role.GENERATE
    tokens: np.ndarray = field(init=False)
    forwards: int = 0

    def __post_init__(self) -> None:
        self.tokens = np.full(self.length, MASK, np.int32)

    def step(
        self, rule: HostCommitRule, confidence: Sequence[float], proposed: Sequence[int] | None = None
    ) -> list[int]:
        """Return the positions that change."""
        where = {"block": self.block, "role": self.role, "forwards": self.forwards}
        found = view(confidence, proposed, self.tokens, **where, ranks=rule.ranks)  # type: ignore[arg-type]
        before, self.tokens = self.tokens, decide(rule, found).tokens.copy()
        self.forwards += 1
        return np.flatnonzero(before != self.tokens).tolist()


def test_saber_takes_back_what_lost_most_and_forgets_no_confidence() -> None:
    canvas, rule = Canvas(6, 6), rule_of("saber", 6)
    assert canvas.step(rule, [0.9, 0.8, 0.7, 0.6, 0.5, 0.5]) == [0]  # and 1, which is taken back at once
    assert canvas.step(rule, [0.6, 0.8, 0.7, 0.9, 0.86, 0.5]) == [0, 3, 4]  # above 0.85; 0 lost most


def test_saber_tells_apart_what_its_precision_does() -> None:
    """The less certain of two commits is taken back, the leftmost of equals."""
    confidence = [1 - 1e-10, 0.5, 1 - 1e-9, 0.5]
    assert Canvas(4, 4).step(rule_of("saber", 4, precision="double"), confidence) == [0]
    assert Canvas(4, 4).step(rule_of("saber", 4), confidence) == [2]


def remasked(
    rule: HostCommitRule, canvas: list[int], now: list[float], best: list[float] | None = None
) -> CommitDecision:
    """A forward after which the tokens of `canvas` have the probabilities `now`, and other tokens `best`."""
    found = view(best or [0.6] * len(now), [7] * len(now), np.array(canvas, np.int32))
    return decide(rule, replace(found, rescored=np.log(np.array(now, np.float32))))


def test_t2m_takes_back_the_least_probable_tokens_a_quarter_at_a_time_and_each_once() -> None:
    rule = rule_of("t2m", 8)
    canvas, now = [5, 5, 5, 5, 5, 5, MASK, MASK], [0.31, 0.2, 0.1, 0.29, 0.05, 0.9, 1.0, 1.0]
    decision = remasked(rule, canvas, now, [0.6] * 6 + [0.71, 0.69])
    assert decision.tokens.tolist() == [5, 5, 5, 5, MASK, 5, 7, MASK]  # one of six
    decision = remasked(rule, decision.tokens.tolist(), now, [0.6] * 4 + [0.8, 0.6, 0.6, 0.9])
    assert decision.tokens.tolist() == [5, 5, MASK, 5, 7, 5, 7, 7]  # 4 has come back
    decision = remasked(rule, decision.tokens.tolist(), now)
    assert decision.tokens.tolist() == [5, MASK, 7, 5, 7, 5, 7, 7]  # 4 is less probable, but was taken back once
    assert remasked(rule_of("t2m", 8, remask_share=0.5), canvas, now).tokens.tolist().count(MASK) == 3 + 1  # 7 is best


@pytest.mark.parametrize("count", [1, 3])
def test_t2m_takes_back_as_often_as_it_may(count: int) -> None:
    rule, canvas, taken = rule_of("t2m", 4, remask_times=count), [5, 5, 5, 5], 0
    for _ in range(30):
        decision = remasked(rule, canvas, [0.9, 0.1, 0.9, 0.9], [0.8] * 4)
        taken, canvas = taken + (decision.tokens[1] == MASK), decision.tokens.tolist()
    assert taken == count


def test_t2m_by_swap_goes_by_the_other_token_and_by_drop_by_what_was_lost() -> None:
    swap = rule_of("t2m", 4, remask="swap", remask_threshold=0.9)
    assert remasked(swap, [5, 5, 7, 5], [0.01] * 4, [0.91, 0.95, 0.99, 0.9]).tokens.tolist() == [5, MASK, 7, 5]
    drop, canvas, found = rule_of("t2m", 4, remask="drop"), [MASK, 5, MASK, 5], []
    for now, best in (
        ([1.0, 0.9, 1.0, 0.8], [0.8, 0.01, 0.1, 0.01]),  # nothing is known of the forward before
        ([0.45, 0.61, 1.0, 0.51], [0.1] * 4),  # 0 has lost 0.35
        ([1.0, 0.31, 0.1, 0.2], [0.9] * 4),  # 1 has lost 0.3, 3 a little more
    ):
        canvas = remasked(drop, canvas, now, best).tokens.tolist()
        found.append(canvas)
    assert found == [[7, 5, MASK, 5], [MASK, 5, 7, 5], [7, 5, 7, MASK]]


def test_t2m_looks_again_at_a_full_block_until_nothing_changes_or_its_forwards_are_spent() -> None:
    rule, doubted = rule_of("t2m", 4, edit_steps=2, remask_times=9), [0.1, 0.9, 0.9, 0.9]
    sure = [0.9] * 4
    stays = [remasked(rule, [MASK, 5, 5, 5], sure, sure).stays]  # full now: the next forward looks at it
    stays += [remasked(rule, [7, 5, 5, 5], sure).stays]
    assert [bool(one) for one in stays] == [True, False]
    rule = rule_of("t2m", 4, edit_steps=2, remask_times=9)
    canvas, found = [5, 5, 5, 5], []
    for _ in range(5):
        decision = remasked(rule, canvas, doubted, sure)
        canvas = decision.tokens.tolist()
        found.append((canvas[0], bool(decision.stays)))
    assert found == [(MASK, False), (7, False), (7, False), (7, False), (7, False)]


def weighed(rule: HostCommitRule, confidence: list[float], proposed: list[int], counts: list[int]) -> list[int]:
    """The positions that commit, of an open canvas."""
    found = replace(view(confidence, proposed), frequencies=np.array(counts) / sum(counts))
    return np.flatnonzero(decide(rule, found).tokens != MASK).tolist()


def test_pc_sampler_goes_from_the_left_and_takes_rare_tokens_first() -> None:
    """Scores by hand: exp(-0.25 i) min(10, -p ln(f + 1e-9)), tokens 2, 3 and 4 with the frequencies 0.9, 0.09, 0.01."""
    counts, confidence, proposed = [0, 0, 90, 9, 1], [0.9, 0.6, 0.9, 0.2], [2, 3, 3, 4]
    scores = [
        math.exp(-0.25 * i) * min(10.0, -p * math.log(counts[token] / 100 + 1e-9))
        for i, (p, token) in enumerate(zip(confidence, proposed, strict=True))
    ]
    order = sorted(range(4), key=lambda i: -scores[i])
    assert order == [2, 1, 3, 0]
    for forwards, taken in ((4, 1), (2, 2), (1, 4)):
        assert weighed(rule_of("pc-sampler", 4, steps=forwards), confidence, proposed, counts) == sorted(order[:taken])


def test_pc_sampler_without_decay_ranks_by_probability_with_much_from_the_left_and_a_cap_makes_equals() -> None:
    counts, confidence = [0, 0, 1, 1], [0.5, 0.7, 0.9]
    assert weighed(rule_of("pc-sampler", 3, position_decay=0.0), confidence, [2, 2, 3], counts) == [2]
    assert weighed(rule_of("pc-sampler", 3, position_decay=100.0), confidence, [2, 2, 3], counts) == [0]
    assert weighed(rule_of("pc-sampler", 3, position_decay=0.0, score_cap=0.01), confidence, [2, 2, 3], counts) == [0]
    far = rule_of("pc-sampler", 4096, position_decay=100.0)  # e^-409500 is no number
    assert weighed(far, [0.5] * 4096, [2] * 4096, counts) == [0]


def test_psd_drafts_fall_in_confidence_and_agree_as_a_whole_or_in_part() -> None:
    rule, part = rule_of("psd", 8, draft_decay=0.5, draft_steps=4), rule_of("psd", 8, accept="subset")
    assert isinstance(rule, PSD)
    assert isinstance(part, PSD)
    falling = np.array([0.8, 0.46, 0.45, 0.3, 0.2])  # at least 0.45, 0.225 and 0.1125
    assert [*rule._fills(falling)] == [3, 4, 5]
    assert [*rule._fills(falling / 10)] == [1, 2, 3]
    decided = np.array([7, 8, MASK, 9], np.int32)
    drafts = np.array([[7, 8, MASK, 9], [7, MASK, MASK, 9], [7, 8, 5, 9], [7, 8, MASK, 8]], np.int32)
    assert rule._accepted(drafts, decided, MASK).tolist() == [True, False, False, False]
    assert part._accepted(drafts, decided, MASK).tolist() == [True, True, False, False]


def grown(
    rule: HostCommitRule, canvas: np.ndarray, likely: dict[int, float], ends: dict[int, float]
) -> tuple[int, int]:
    """Positions that commit in a forward, and those of the canvas after it. Proposals have the confidence 0.5."""
    tree = LaneTree(canvas, MASK, filler=END)
    size = rule.canvas_end
    confidence, proposed = [0.5] * size, [TOKEN] * size
    for position, chance in (likely | ends).items():
        confidence[position] = chance
    for position in ends:
        proposed[position] = END
    found = view(confidence, proposed, canvas[:size].copy(), block=8)
    tokens = decide(rule, found).tokens
    committed = int((tokens != canvas[:size]).sum())
    canvas[:size] = tokens
    return committed, rule.resize(tree)


def test_daedal_adds_positions_until_ends_are_dense_and_then_end_tokens() -> None:
    rule, canvas = rule_of("daedal", 80, canvas_start=40, canvas_step=8), np.full(80, MASK, np.int32)
    assert isinstance(rule, Daedal)
    assert rule.resize(LaneTree(canvas, MASK, filler=END)) == 40
    few, many = dict.fromkeys(range(23, 40), 0.9), dict.fromkeys(range(24, 48), 0.9)  # 15.3 and 21.6 of 32
    assert grown(rule, canvas, {0: 0.99}, few) == (0, 48)
    assert rule.canvas_end == 48
    assert grown(rule, canvas, {0: 0.99}, many) == (0, 48)
    assert rule.canvas_end == 64
    assert canvas[48:64].tolist() == [END] * 16
    assert (canvas[64:] == MASK).all()
    assert grown(rule, canvas, {0: 0.99, 3: 0.9}, {}) == (1, 48)  # not those of just 0.9
    assert grown(rule, canvas, {3: 0.05}, {}) == (1, 55)  # one has to commit, and it is hard to fill
    assert (rule.canvas_end, canvas[48:55].tolist(), canvas[55:71].tolist()) == (71, [MASK] * 7, [END] * 16)
    assert grown(rule, canvas, {3: 0.05}, dict.fromkeys(range(39, 71), 0.99)) == (1, 55)  # the end is in sight
    canvas[:8] = MASK
    for _ in range(8):
        grown(rule, canvas, {7: 0.05}, {})
    assert (rule.canvas_end, rule.resize(LaneTree(canvas, MASK, filler=END))) == (80, 80)


def test_daedal_stops_to_grow_at_the_most_and_without_a_bound_never_grows() -> None:
    canvas = np.full(20, MASK, np.int32)
    rule = rule_of("daedal", 20, canvas_start=10)
    assert [grown(rule, canvas, {0: 0.99}, {}) for _ in range(4)] == [(0, 18), (0, 20), (0, 20), (1, 20)]
    canvas = np.full(64, MASK, np.int32)
    fixed = rule_of("daedal", 64, canvas_start=32, grow_below=0.0, unsure_below=0.0)
    assert [grown(fixed, canvas, {0: 0.01}, {})[1] for _ in range(5)] == [32] * 5


def in_parts(tokens: int, confidence: Sequence[float], *parts: tuple[int, int, bool]) -> list[int]:
    """The positions that a forward of `nap` commits in lanes (start, end, whether it must commit)."""
    lanes = [Lane(number, None, Role.REFINE, start, end, end - start) for number, (start, end, _) in enumerate(parts)]
    bounds = np.array([start for start, _, _ in parts]), np.array([end for _, end, _ in parts])
    forced, owner = np.array([must for _, _, must in parts]), np.zeros(len(parts), np.intp)
    found = replace(view(confidence), lanes=Lanes(lanes, bounds, owner, forced, len(confidence)))
    return np.flatnonzero(decide(rule_of("nap", tokens_per_call=tokens), found).tokens != MASK).tolist()


def test_nap_divides_its_tokens_among_the_parts_and_takes_the_most_confident_of_each() -> None:
    confidence = [0.9, 0.9, 0.9, 0.3, 0.2, 0.1, 0.6, 0.5, 0.7, 0.99]
    parts = (0, 3, True), (3, 6, True), (6, 9, True), (9, 10, False)
    assert in_parts(1, confidence, *parts) == [0, 3, 8]  # each commits something
    assert in_parts(3, confidence, *parts) == [0, 3, 8]
    assert in_parts(5, confidence, *parts) == [0, 1, 3, 4, 8]
    assert in_parts(7, confidence, *parts) == [0, 1, 2, 3, 4, 6, 8]
    assert in_parts(50, confidence, *parts) == list(range(9))  # the summary waits
    assert in_parts(5, confidence, (0, 1, True), (3, 4, True), (6, 10, True)) == [0, 3, 6, 8, 9]  # nothing is left over


def test_localleap_needs_less_within_four_positions_of_an_anchor() -> None:
    confidence = [0.80, 0.80, 0.95, 0.74, 0.75, 0.80, 0.80, 0.80, 0.95]
    assert Canvas(9, 8).step(rule_of("localleap", 9), confidence) == [0, 1, 2, 4, 5, 6]
    assert Canvas(9, 8).step(rule_of("localleap", 9, reach=1), confidence) == [1, 2]
    assert Canvas(9, 9).step(rule_of("localleap", 9, reach=1), confidence) == [1, 2, 7, 8]

    # Without an anchor it takes the best.
    assert Canvas(4, 4).step(rule_of("localleap", 4), [0.8, 0.85, 0.85, 0.89]) == [3]


def test_cad_takes_the_best_four_and_end_tokens_wait_in_the_first_half() -> None:
    confidence = [0.96, 0.99, 0.98, 0.95, 0.97, 0.99, 0.94, 0.5]
    assert Canvas(8, 8).step(rule_of("cad", 8), confidence) == [1, 2, 4, 5]
    assert Canvas(8, 8).step(rule_of("cad", 8, most_tokens=2), confidence) == [1, 5]
    assert Canvas(4, 4).step(rule_of("cad", 4), [0.3, 0.6, 0.6, 0.2]) == [1]  # the best, without a certain one
    canvas, rule = Canvas(6, 6), rule_of("cad", 6, most_tokens=1)
    proposed = [TOKEN, TOKEN, TOKEN, END, END, END]
    assert [canvas.step(rule, [0.1, 0.2, 0.3, 0.97, 0.99, 0.98], proposed)[0] for _ in range(4)] == [2, 1, 0, 4]
    assert Canvas(3, 3).step(rule, [0.9, 0.99, 0.98], [END, END, END]) == [0]  # all of them wait


def test_credit_of_a_repeated_proposal_stands_for_certainty() -> None:
    """0.6 twice: credit 0.6^0.2, then 0.8 of that and as much again, counts times (1 + credit)^0.7."""
    canvas, rule = Canvas(2, 2), rule_of("credit", 2, threshold=0.73)
    once = 0.6**0.2
    fused = [0.6 * (1 + c) ** 0.7 for c in (once, 1.8 * once)]
    first, second = (weight / (weight + 0.4) for weight in fused)
    assert first < 0.73 < second
    assert canvas.step(rule, [0.99, 0.6]) == [0]
    assert canvas.step(rule, [0.99, 0.6]) == [1]


def test_credit_may_turn_a_proposal_but_never_into_an_end_where_none_may_come() -> None:
    for role, said in ((Role.GENERATE, END), (Role.REFINE, TOKEN)):
        canvas, rule = Canvas(4, 4, role), rule_of("credit", 4, threshold=1.0)
        for _ in range(3):
            canvas.step(rule, [0.9, 0.5, 0.8, 0.7], [TOKEN, END, TOKEN, TOKEN])
        assert canvas.tokens[1] == MASK
        assert decide(rule, view([0.51] * 4, None, canvas.tokens, role=role, forwards=3, second=END)).tokens[1] == said


def test_klass_commits_what_is_certain_once_its_distribution_has_been_still() -> None:
    canvas, rule = Canvas(6, 6), rule_of("klass", 6)
    assert canvas.step(rule, [0.99, 0.95, 0.95, 0.95, 0.5, 0.5]) == [0]  # no history: the schedule's one
    assert canvas.step(rule, [0.99, 0.95, 0.99, 0.95, 0.5, 0.5]) == [2]
    # 1 has been still for two calls; 3 as well; 4 is still, but not certain
    assert canvas.step(rule, [0.99, 0.951, 0.99, 0.95, 0.5, 0.5]) == [1, 3]
    assert canvas.step(rule, [0.99, 0.95, 0.99, 0.95, 0.5, 0.95]) == [5]


def test_ahd_commits_after_the_lane_what_has_long_been_still() -> None:
    canvas, rule = Canvas(6, 2), rule_of("ahd", 6, history=2)
    assert canvas.step(rule, [0.5, 0.4, 0.99, 0.90, 0.6, 0.99]) == [0]
    assert canvas.step(rule, [0.5, 0.4, 0.99, 0.99, 0.6, 0.99]) == [1]
    assert canvas.step(rule, [0.5, 0.4, 0.99, 0.99, 0.6, 0.99]) == [2, 5]


def test_ccd_commits_all_that_was_among_the_best_a_call_ago_with_the_same_token() -> None:
    canvas, rule = Canvas(8, 8), rule_of("ccd", 8, warmup=1)
    confidence = [0.99, 0.98, 0.97, 0.96, 0.95, 0.94, 0.93, 0.92]
    assert canvas.step(rule, confidence) == [0]  # remembers 1 and 2
    assert canvas.step(rule, confidence) == [1, 2]  # and now 3, 4 and 5
    proposed = [TOKEN, TOKEN, TOKEN, 7, TOKEN, TOKEN, TOKEN, TOKEN]
    assert canvas.step(rule, confidence, proposed) == [4, 5]  # 3 says something else
    assert canvas.step(rule, confidence, proposed) == [3, 6, 7]


@pytest.mark.parametrize(("ramp", "weight"), [("block", 1.0), ("canvas", 0.4 + 0.6 * 3 / 7)])
def test_eoser_weighs_end_tokens_by_how_far_the_block_is(ramp: str, weight: float) -> None:
    """In the last of four calls of a block, of eight of the canvas."""
    for other, first in ((weight - 0.01, 0), (weight + 0.001, 1)):
        if other >= 1:
            continue
        canvas, rule = Canvas(4, 4), rule_of("eoser", 8, block_length=4, end_ramp=ramp)
        canvas.forwards = 3
        assert canvas.step(rule, [0.9999, other, 0.1, 0.1], [END, TOKEN, TOKEN, TOKEN]) == [first]


def test_ass_doubles_what_a_call_takes_and_the_last_takes_all() -> None:
    canvas, rule = Canvas(19, 19), rule_of("ass", 19)
    counts = [len(canvas.step(rule, np.linspace(0.9, 0.5, 19).tolist())) for _ in range(4)]
    assert counts == [1, 2, 4, 12]


def test_prophet_leaves_once_the_gap_is_what_the_share_of_work_requires() -> None:
    """A gap of 5 is enough in the second third, of six calls from the second on."""
    sure = 1 / (1 + np.exp(-5.01))
    for at in ("open", 2):
        canvas, rule = Canvas(6, 3), rule_of("prophet", 6, steps=6, block_length=6, answer_at=at, answer_length=2)
        confidence = [0.9995, 0.9995, sure, sure, 0.9995, 0.9995]
        assert canvas.step(rule, confidence) == [0]
        assert canvas.step(rule, confidence) == [1, 2, 3, 4, 5]
    hard = rule_of("prophet", 6, steps=6, block_length=6)
    assert Canvas(6, 3).step(hard, [0.9999, 0.9999, 0.6, 0.9999, 0.9999, 0.9999]) == [0]


def test_prophet_looks_no_further_than_the_end_of_the_answer() -> None:
    canvas, rule = Canvas(6, 3), rule_of("prophet", 6, steps=6, block_length=6)
    assert canvas.step(rule, [0.9999, 0.9999, 0.9999, 0.3, 0.3, 0.3], [5, 5, END, 5, 5, 5]) == list(range(6))


def raised(history: list[list[float]], tokens: list[list[int]] | None = None) -> list[float]:
    kept = forecast.Forecast(Params({"horizon": 2, "coverage": 0.8}), length=len(history[0]))
    score = np.zeros(0)
    for step, seen in enumerate(history):
        found = view(seen, None if tokens is None else tokens[step])
        score = forecast.raised([kept], found, found.confidence)
    return score.tolist()


def test_a_rising_proposal_counts_as_more_than_it_has_and_a_fall_a_swing_and_a_change_gain_nothing() -> None:
    (score,) = raised([[0.3], [0.5], [0.7], [0.85]])
    assert score > 0.9
    assert raised([[0.85]]) == [0.85]
    assert raised([[0.95], [0.9], [0.85]]) == [0.85]
    assert raised([[0.4], [0.9], [0.3], [0.8]]) == [0.8]
    history, tokens = [[0.3], [0.5], [0.7], [0.85]], [[TOKEN]] * 3 + [[TOKEN + 1]]
    assert raised(history, tokens) == [0.85]


def test_nothing_is_predicted_after_what_is_still_changing() -> None:
    history = [[0.5, 0.3], [0.5, 0.5], [0.5, 0.7], [0.5, 0.85]]
    settled, changing = [[TOKEN, TOKEN]] * 4, [[TOKEN + step % 2, TOKEN] for step in range(4)]
    assert raised(history, settled)[1] > 0.9
    assert raised(history, changing)[1] == 0.85


def commit_of_the_last(confidence: list[float], tokens: list[int], **params: object) -> int:
    """The forward in which the last of six positions commits, with this confidence in each forward. One of the others
    is certain in each."""
    canvas, rule = Canvas(6, 6), rule_of("ce", 6, horizon=0, **params)
    for step, (chance, token) in enumerate(zip(confidence, tokens, strict=True)):
        others = [0.99 if place == step else 0.5 for place in range(5)]
        if 5 in canvas.step(rule, [*others, chance], [*[TOKEN] * 5, token]):
            return step
    return -1


def test_a_position_whose_proposal_changed_waits_but_not_for_long() -> None:
    rises, constant = [0.4, 0.95, 0.95, 0.95, 0.95], [0.95] * 5
    turning, once = [5, 6, 5, 6, 5], [5, 6, 6, 6, 6]
    assert commit_of_the_last(rises, turning) == commit_of_the_last(rises, once) == 1
    assert commit_of_the_last(rises, turning, wait_changes=2) == 4  # after three forwards it waits no longer
    assert commit_of_the_last(rises, turning, wait_changes=2, wait_most=1) == 2
    assert commit_of_the_last(rises, once, wait_changes=2) == 3
    assert commit_of_the_last(constant, [5] * 5, wait_changes=2, wait_margin=0.0) == 0


def test_a_position_waits_while_its_confidence_falls() -> None:
    falls, tokens = [0.4, 0.99, 0.93, 0.92, 0.91], [5, 6, 6, 6, 6]
    assert commit_of_the_last(falls, tokens, wait_changes=1) == 2
    assert commit_of_the_last(falls, tokens, wait_changes=1, wait_margin=0.05) == 4
    assert commit_of_the_last(falls, tokens, wait_changes=1, wait_margin=1.0) == 2
    rule = rule_of("ce", 2, horizon=0, wait_changes=2, wait_margin=0.0)
    canvas = Canvas(2, 2)
    assert canvas.step(rule, [0.5, 0.4], [5, 5]) == [0]
    assert canvas.step(rule, [0.5, 0.95], [5, 6]) == [1]  # the lane has to go on


@pytest.mark.parametrize("name", LEARNT)
def test_the_first_lane_always_goes_on_what_is_certain_commits_and_what_has_committed_stays(name: str) -> None:
    assert decide(rule_of(name), view([0.2, 0.21, 0.2, 0.19])).tokens.tolist() == [MASK, TOKEN, MASK, MASK]
    sure, canvas = [0.9999] * 8, [7, 7, *[MASK] * 6]
    found = view(sure, canvas=np.array(canvas, np.int32))
    assert decide(rule_of(name), found).tokens.tolist() == [7, 7, *[TOKEN] * 6]


@pytest.mark.parametrize("name", LEARNT)
def test_a_decision_takes_a_fraction_of_a_millisecond(name: str) -> None:
    """For a lane of 64 positions, best of many; a step of the device takes several milliseconds."""
    rule, found = rule_of(name, eotp=False) if name == "learn2pd" else rule_of(name), view([0.3] * 64)
    times = []
    for _ in range(50):
        started = time.perf_counter()
        decide(rule, found)
        times.append(time.perf_counter() - started)
    assert min(times) < 1e-3


def test_the_filter_serves_lanes_longer_than_its_window() -> None:
    rule = rule_of("learn2pd", eotp=False)
    long = decide(rule, view([0.9999] * (2 * WINDOW + 5)))
    assert (long.tokens == TOKEN).all()


def test_a_product_of_a_row_is_the_same_whatever_rows_come_with_it() -> None:
    random = np.random.default_rng(0)
    rows, matrix = random.random((197, 24), np.float32), random.random((24, 72), np.float32)
    together = product(rows, matrix)
    np.testing.assert_allclose(together, rows @ matrix, rtol=1e-5)
    for count in (1, 2, 64, 65):
        assert (product(rows[-count:], matrix) == together[-count:]).all()


def cutting(ends: list[int], confidence: list[float], takes: float) -> int | None:
    """Where a canvas is cut if the filter gives this score to all."""

    class Same(Filter):
        def scores(self, windows: np.ndarray) -> np.ndarray:
            return np.full(windows.shape, takes, np.float32)

    rule = Learn2PD(Params(Learn2PD.DEFAULTS), len(confidence))
    rule._filter = Same({})
    tokens = [END if at in ends else TOKEN for at in range(len(confidence))]
    ends = decide(rule, view(confidence, tokens)).ends
    return None if ends is None else ends[0]


def test_the_canvas_is_cut_after_the_first_end_that_is_taken_or_else_the_surest() -> None:
    assert cutting([], [0.5] * 4, takes=1.0) is None
    assert cutting([1, 3], [0.5, 0.6, 0.5, 0.9], takes=1.0) == 1
    assert cutting([1, 3], [0.5, 0.6, 0.5, 0.9], takes=0.0) == 3


def test_an_answer_ends_where_the_canvas_was_cut() -> None:
    """Nothing after it is computed any more."""
    executor = ScriptedExecutor(lambda slot, position: (END, 0.8) if position == 44 else (TOKEN, 0.5))
    (sequence,) = run(executor, vocabulary(), [Spec([TOKEN] * 4, 128, "learn2pd")])
    assert sequence.outcome is Outcome.STOP
    assert sequence.canvas[:41].tolist() == [TOKEN] * 40 + [END]
    assert (sequence.canvas[41:] == MASK).all()
    first, *later = [row.end for plan in executor.plans for row in plan.rows]
    assert (first, max(later)) == (132, 45)


def test_a_checked_draft_is_accepted_from_the_left_and_the_first_refused_token_replaced() -> None:
    rule = checker(draws="half")
    found = view([0.9, 0.8, 0.7, 0.6], [5, 6, 7, 8], second=9)
    assert decide(rule, found).tokens.tolist() == [MASK] * 4
    assert rule.span == (0, 4)
    assert rule.draft.tolist() == [5, 6, 7, 8]
    # By the check, 5 is as likely, 6 half as likely and a bit more, 7 less than half as likely, and 9 the likeliest.
    again = view([0.9, 0.55, 0.9, 0.9], [5, 6, 9, 8], second=3)
    logprobs = np.log(np.array([0.9, 0.41, 0.34, 0.9], np.float32))
    assert S2D2.accept([rule], again, Verified(logprobs, np.array([3]))).tokens.tolist() == [5, 6, 9, MASK]
    assert rule.span is None


def test_what_a_check_leaves_is_distributed_as_the_network_that_checks() -> None:
    """The promise of speculative sampling, by a chi-square test: with tokens drawn from the draft's distribution."""
    rng = np.random.default_rng(5)
    drafted, checked = np.array([0.5, 0.3, 0.1, 0.06, 0.04]), np.array([0.2, 0.1, 0.4, 0.25, 0.05])
    ids, counts, draws = np.arange(10, 15), np.zeros(5), 4000 if ALL else 1500
    rule = checker(draws="seeded")
    for number, token in enumerate(rng.choice(5, draws, p=drafted)):
        found = whole([drafted[token]], [ids[token]], ids, drafted)
        decide(rule, found)
        again = whole([checked.max()], [ids[checked.argmax()]], ids, checked)
        decision = S2D2.accept([rule], again, Verified(np.log(checked[[token]]).astype(np.float32), np.array([number])))
        counts[int(decision.tokens[0]) - 10] += 1
    assert ((counts - draws * checked) ** 2 / (draws * checked)).sum() < 18.5  # 0.1 % of all seeds have more


@pytest.mark.parametrize(
    ("params", "doubts", "decisions"),
    [
        ({"routing": "span", "least_span": 3}, [[0.0] * 2, [0.0] * 3], [False, True]),
        ({"least_score": 1.5}, [[0.5] * 2, [0.0, 0.7]], [False, False]),
        ({"least_score": 1.4}, [[0.0, 0.8], [0.0, 1.0]], [True, False]),
        ({"routing": "hysteresis"}, [[0.0], [0.0] * 2, [9.0], [0.0]], [False, True, True, True]),
        ({"routing": "hysteresis", "score_off": 0.5}, [[0.0] * 2, [9.0], [0.0]], [True, False, False]),
        ({"routing": "bandit"}, [[0.0] * 4] * 4, [True, False, True, True]),
    ],
    ids=str,
)
def test_which_drafts_are_checked(params: dict[str, object], doubts: list[list[float]], decisions: list[bool]) -> None:
    """In the bandit's case a check brings 4 tokens a forward, and a draft alone one."""
    routing = Routing(Params({"block_length": 8, **S2D2.DEFAULTS, **params}))
    made = []
    for each in doubts:
        made.append(routing.decide(Features(np.array(each), sure=0, filled=0.0)))
        routing.learn(8 if made[-1] else 1, forwards=2 if made[-1] else 1)
    assert made == decisions


def test_numbers_of_the_host_are_those_of_the_device() -> None:
    seed, step, positions = (1 << 40) + 77, 9, np.array([0, 5, 4000])
    draws = draws_of(3, seeds=seed, positions=positions.tolist(), steps=step)
    keys = noise.uniform(noise._bits(noise._keys(draws), int(ACCEPT)))
    assert uniform(seed, positions, step, ACCEPT).tolist() == keys.tolist()
    assert uniform(-5, positions, step, RESAMPLE).tolist() != uniform(5, positions, step, RESAMPLE).tolist()


def checker(**params: object) -> S2D2:
    return S2D2(Params({"block_length": 4, **S2D2.DEFAULTS, **params}), 4)


def whole(confidence: list[float], tokens: list[int], ids: np.ndarray, shares: np.ndarray) -> StepView:
    """One position with its whole distribution."""
    likely, order = view(confidence, tokens), np.argsort(-shares)
    return replace(
        likely, ranked=ids[order][None].astype(np.int32), logprobs=np.log(shares[order])[None].astype(np.float32)
    )
