"""The commits of each host rule, for steps with the numbers of its source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from asynclane.scheduler.decoding.commit import HOST_RULES
from asynclane.scheduler.decoding.commit.base import HostCommitRule, LaneSlice, StepView
from asynclane.scheduler.decoding.lane_tree import Lane, Role
from asynclane.scheduler.decoding.params import Params

MASK, END, VOCABULARY = 0, 1, 12
TOKEN = 5  # what is proposed where nothing else is said


def make_rule(rule: str, length: int, **params: object) -> HostCommitRule:
    return HOST_RULES[rule](Params({"block_length": length, **HOST_RULES[rule].DEFAULTS, **params}), length)


@dataclass
class Canvas:
    """One lane from position 0 to `block`, look-ahead after it; `step` shows it to a host rule."""

    length: int
    block: int
    role: Role = Role.GENERATE
    tokens: np.ndarray = field(init=False)
    calls: int = 0

    def __post_init__(self) -> None:
        self.tokens = np.full(self.length, MASK, np.int32)

    def step(
        self, rule: HostCommitRule, confidence: Sequence[float], proposed: Sequence[int] | None = None
    ) -> list[int]:
        """The positions that commit. Each distribution is its token's `confidence` and, for the rest, one token."""
        chosen = np.full(self.length, TOKEN, np.int32) if proposed is None else np.array(proposed, np.int32)
        certain = np.array(confidence)
        ranked = np.stack((chosen, np.full(self.length, VOCABULARY - 1)), 1).astype(np.int32)
        logprobs = np.log(np.stack((certain, 1 - certain), 1))
        lane = Lane(0, None, self.role, 0, self.block, self.block, steps=self.calls)
        view = StepView(
            canvas=self.tokens,
            mask_id=MASK,
            positions=np.arange(self.length, dtype=np.int32),
            tokens=chosen,
            confidence=certain,
            entropy=-np.sum(np.exp(logprobs) * logprobs, axis=1),
            ranked=ranked[:, : rule.ranks],
            logprobs=logprobs[:, : rule.ranks],
            lane_slices=(LaneSlice(lane, slice(0, self.block), True),),
            ends=np.arange(VOCABULARY) == END,
            step=self.calls,
        )
        before, self.tokens = self.tokens, rule.choose(view).tokens.copy()
        self.calls += 1
        return np.flatnonzero(before != self.tokens).tolist()


def test_saber_takes_back_what_lost_most_and_forgets_no_confidence() -> None:
    canvas, rule = Canvas(6, 6), make_rule("saber", 6)
    assert canvas.step(rule, [0.9, 0.8, 0.7, 0.6, 0.5, 0.5]) == [0]  # and 1, which is taken back at once
    assert canvas.step(rule, [0.6, 0.8, 0.7, 0.9, 0.86, 0.5]) == [0, 3, 4]  # above 0.85; 0 lost most


def test_saber_tells_apart_what_its_precision_does() -> None:
    """The less certain of two commits is taken back, the leftmost of equals."""
    confidence = [1 - 1e-10, 0.5, 1 - 1e-9, 0.5]
    assert Canvas(4, 4).step(make_rule("saber", 4, precision="double"), confidence) == [0]
    assert Canvas(4, 4).step(make_rule("saber", 4), confidence) == [2]


def test_localleap_asks_less_within_four_positions_of_an_anchor() -> None:
    confidence = [0.80, 0.80, 0.95, 0.74, 0.75, 0.80, 0.80, 0.80, 0.95]
    assert Canvas(9, 8).step(make_rule("localleap", 9), confidence) == [0, 1, 2, 4, 5, 6]
    assert Canvas(9, 8).step(make_rule("localleap", 9, reach=1), confidence) == [1, 2]
    assert Canvas(9, 9).step(make_rule("localleap", 9, reach=1), confidence) == [1, 2, 7, 8]


def test_localleap_without_an_anchor_takes_the_best() -> None:
    assert Canvas(4, 4).step(make_rule("localleap", 4), [0.8, 0.85, 0.85, 0.89]) == [3]


def test_credit_of_a_repeated_proposal_stands_for_certainty() -> None:
    """0.6 twice: credit 0.6^0.2, then 0.8 of that and as much again, counts times (1 + credit)^0.7."""
    canvas, rule = Canvas(2, 2), make_rule("credit", 2, threshold=0.73)
    once = 0.6**0.2
    fused = [0.6 * (1 + c) ** 0.7 for c in (once, 1.8 * once)]
    first, second = (weight / (weight + 0.4) for weight in fused)
    assert first < 0.73 < second
    assert canvas.step(rule, [0.99, 0.6]) == [0]
    assert canvas.step(rule, [0.99, 0.6]) == [1]


def test_credit_may_turn_a_proposal_but_never_into_an_end_where_none_may_come() -> None:
    for role, said in ((Role.GENERATE, END), (Role.REFINE, TOKEN)):
        canvas, rule = Canvas(4, 4, role), make_rule("credit", 4, threshold=1.0)
        for _ in range(3):
            canvas.step(rule, [0.9, 0.5, 0.8, 0.7], [TOKEN, END, TOKEN, TOKEN])
        assert canvas.tokens[1] == MASK
        assert rule.choose(_turned(canvas, role)).tokens[1] == said


def _turned(canvas: Canvas, role: Role) -> StepView:
    """Position 1 now proposes TOKEN, only just ahead of END."""
    ranked = np.array([[TOKEN, END]] * 4, np.int32)
    likely = np.array([[0.51, 0.49]] * 4)
    lane = Lane(0, None, role, 0, 4, 1, steps=3)
    return StepView(
        canvas=canvas.tokens,
        mask_id=MASK,
        positions=np.arange(4, dtype=np.int32),
        tokens=ranked[:, 0].copy(),
        confidence=likely[:, 0],
        entropy=likely[:, 1],
        ranked=ranked,
        logprobs=np.log(likely),
        lane_slices=(LaneSlice(lane, slice(0, 4), True),),
        ends=np.arange(VOCABULARY) == END,
        step=3,
    )


def test_klass_commits_what_is_certain_once_its_distribution_has_been_still() -> None:
    canvas, rule = Canvas(6, 6), make_rule("klass", 6)
    assert canvas.step(rule, [0.99, 0.95, 0.95, 0.95, 0.5, 0.5]) == [0]  # no history: the schedule's one
    assert canvas.step(rule, [0.99, 0.95, 0.99, 0.95, 0.5, 0.5]) == [2]
    # 1 has been still for two calls; 3 as well; 4 is still, but not certain
    assert canvas.step(rule, [0.99, 0.951, 0.99, 0.95, 0.5, 0.5]) == [1, 3]
    assert canvas.step(rule, [0.99, 0.95, 0.99, 0.95, 0.5, 0.95]) == [5]


def test_ahd_commits_behind_the_lane_what_has_long_been_still() -> None:
    canvas, rule = Canvas(6, 2), make_rule("ahd", 6, history=2)
    assert canvas.step(rule, [0.5, 0.4, 0.99, 0.90, 0.6, 0.99]) == [0]
    assert canvas.step(rule, [0.5, 0.4, 0.99, 0.99, 0.6, 0.99]) == [1]
    assert canvas.step(rule, [0.5, 0.4, 0.99, 0.99, 0.6, 0.99]) == [2, 5]


def test_ccd_commits_all_that_was_among_the_best_a_call_ago_with_the_same_token() -> None:
    canvas, rule = Canvas(8, 8), make_rule("ccd", 8, warmup=1)
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
        canvas, rule = Canvas(4, 4), make_rule("eoser", 8, block_length=4, end_ramp=ramp)
        canvas.calls = 3
        assert canvas.step(rule, [0.9999, other, 0.1, 0.1], [END, TOKEN, TOKEN, TOKEN]) == [first]


def test_ass_doubles_what_a_call_takes_and_the_last_takes_all() -> None:
    canvas, rule = Canvas(19, 19), make_rule("ass", 19)
    counts = [len(canvas.step(rule, np.linspace(0.9, 0.5, 19).tolist())) for _ in range(4)]
    assert counts == [1, 2, 4, 12]


def test_prophet_leaves_once_the_gap_is_what_the_share_of_work_asks() -> None:
    """A gap of 5 is enough in the second third, of six calls from the second on."""
    sure = 1 / (1 + np.exp(-5.01))
    for at in ("open", 2):
        canvas, rule = Canvas(6, 3), make_rule("prophet", 6, steps=6, block_length=6, answer_at=at, answer_length=2)
        confidence = [0.9995, 0.9995, sure, sure, 0.9995, 0.9995]
        assert canvas.step(rule, confidence) == [0]
        assert canvas.step(rule, confidence) == [1, 2, 3, 4, 5]
    hard = make_rule("prophet", 6, steps=6, block_length=6)
    assert Canvas(6, 3).step(hard, [0.9999, 0.9999, 0.6, 0.9999, 0.9999, 0.9999]) == [0]


def test_prophet_looks_no_further_than_the_end_of_the_answer() -> None:
    canvas, rule = Canvas(6, 3), make_rule("prophet", 6, steps=6, block_length=6)
    assert canvas.step(rule, [0.9999, 0.9999, 0.9999, 0.3, 0.3, 0.3], [5, 5, END, 5, 5, 5]) == list(range(6))
