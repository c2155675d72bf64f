"""The status of a lane after a step, and boundaries, on lanes written by hand."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from asynclane.scheduler.decoding.boundaries import Boundary, Nesting
from asynclane.scheduler.decoding.lane_tree import Lane, Role
from asynclane.scheduler.decoding.lanes.base import ABSENT, LaneStatus
from asynclane.scheduler.decoding.stability import Stability
from asynclane.scheduler.decoding.vocabulary import COMMA, LINE, SENTENCE, Vocabulary
from asynclane.scheduler.lane_status import FEW, EndSpan, LaneSnapshot, lane_statuses, predicted_ends

from ..support.fakes import IDS, vocabulary
from ..support.scale import ALL

CODE = Nesting(in_code=True)


def ids(text: str) -> np.ndarray:
    return np.array([IDS[letter] for letter in text], np.int32)


def snapshot(
    *lanes: str,
    start: int = 0,
    min_fill: float = 0.5,
    boundary: Boundary = Boundary.AUTO,
    nesting: Nesting | None = None,
    settled: str = "",
    marks: int = 0,
) -> LaneSnapshot:
    """One request; each of `lanes` follows the last, `|` within one ends it and what follows lies between lanes."""
    made, text = [], ""
    for number, lane in enumerate(lanes):
        own, _, between = lane.partition("|")
        made.append(Lane(number, None, Role.GENERATE, start + len(text), start + len(text) + len(own), 0))
        text += own + between
    known = np.array([letter == "s" for letter in settled], np.bool_) if settled else None
    return LaneSnapshot(made, ids(text), known, boundary, lambda: nesting or Nesting(), min_fill, marks)


def statuses(*snapshots: LaneSnapshot) -> list[list[LaneStatus]]:
    return [status.lanes for status in lane_statuses(list(snapshots), vocabulary())]


def fork(lane: str, **how: object) -> int:
    return statuses(snapshot(lane, **how))[0][0].fork_at  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lane", "fork_at"),
    [
        ("ww.ww__", 2),
        ("w_.ww.__", 5),  # the last boundary counts
        ("ww/w__", 2),  # a line break is one
        (".ww____", ABSENT),  # not at the first position
        ("_www.", ABSENT),  # nor at the last
        ("___._w", ABSENT),  # too little before it
        ("__w._w", 3),
        ("w1.2w_", ABSENT),  # a decimal point
        ("w1._w_", ABSENT),  # perhaps one
        ("w1.ww_", 2),  # a sentence that ends in a number
        ("w1/2w_", 2),
        ("1.w_w_", ABSENT),  # the number of a list's item
        ("w/12.w__", 1),  # another one, on a line of its own
        ("w/w12.w__", 5),
        ("ww,w__", ABSENT),  # a comma is none
    ],
)
def test_prose_forks_at_the_last_sentence_end_or_line_break(lane: str, fork_at: int) -> None:
    assert fork(lane) == fork_at
    assert fork(lane, boundary=Boundary.PROSE) == fork_at


@pytest.mark.parametrize(
    ("lane", "fork_at"),
    [
        ("ww/w__", 2),
        ("ww.w__", ABSENT),  # a full stop ends no statement
        ("w(w/w__", ABSENT),  # within brackets
        ("w(w)/w__", 4),
        ('w"w/w__', ABSENT),  # within quotes
        ('w"w"/w__', 4),
        ("w='w/w__", ABSENT),
        ("w'w'/w__", 4),
        ("'w/w__", ABSENT),
        ("'w/w/w__", 4),  # an apostrophe concerns its own line only
        ("ww:/w__", ABSENT),  # a block's head needs its body
        ("wwNww__", ABSENT),  # the same in one token
        ("w=/w__", ABSENT),  # half an assignment
        ("w_/w__", ABSENT),  # what is masked may be anything
        ("w,/w__", ABSENT),
        ("w//w__", 2),  # an empty line
    ],
)
def test_code_forks_where_a_statement_is_complete_and_nothing_is_open(lane: str, fork_at: int) -> None:
    assert fork(lane, nesting=CODE) == fork_at
    assert fork(lane, boundary=Boundary.CODE, nesting=CODE) == fork_at


def test_a_fence_switches_the_rules_within_an_answer() -> None:
    assert fork("w.`w.w__", min_fill=0) == 1  # full stops count up to the fence
    assert fork("w`/w.`w.__", min_fill=0) == 7  # and again after the closing one
    assert fork("w`(/w__", min_fill=0) == ABSENT
    assert fork("(`w/w__", min_fill=0) == 3  # what prose has open does not concern the block
    assert fork("w`w.w__", boundary=Boundary.PROSE, min_fill=0) == 3
    assert fork("w)/w__", nesting=Nesting(True, brackets=1)) == 2
    assert fork("ww/w__", nesting=Nesting(True, brackets=1)) == ABSENT
    assert fork("ww/w__", nesting=Nesting(True, quotes=1)) == ABSENT


@pytest.mark.parametrize(
    ("prompt", "in_code"),
    [("w.", False), ("w`w", True), ("w`w`w", False), ("w`wNw", True), ("(w", False), ("w`wE", False), ("E`w(", True)],
)
def test_an_answer_goes_on_in_the_code_block_that_its_prompt_has_opened_in_this_turn(
    prompt: str, in_code: bool
) -> None:
    nesting = Nesting.of(Boundary.AUTO, ids(prompt), vocabulary())
    assert nesting.in_code is in_code
    assert nesting.brackets == (1 if prompt == "E`w(" else 0)
    assert fork("w)/w__", nesting=nesting, min_fill=0) == (2 if in_code else fork("w)/w__", min_fill=0))


@pytest.mark.parametrize("text", ["w`w(w", "w`w(`w.", 'w`"w`w`/w(="', "ww.", "`((`((", "`w("])
def test_what_is_open_is_the_same_read_at_once_or_in_parts(text: str) -> None:
    whole = Nesting().after(ids(text), vocabulary())
    for cut in range(len(text) + 1):
        assert Nesting().after(ids(text[:cut]), vocabulary()).after(ids(text[cut:]), vocabulary()) == whole


def test_commas_and_strides_are_boundaries_only_where_chosen() -> None:
    assert fork("ww,w__", boundary=Boundary.COMMA) == 2
    assert fork("w" * 17 + "_", boundary=Boundary.STRIDE) == 15
    assert fork("w" * 15 + "__", boundary=Boundary.STRIDE, min_fill=0) == ABSENT  # an open position is none
    assert fork("ww.w__", boundary=Boundary.STABLE) == ABSENT


def test_a_settled_half_of_a_lane_is_a_boundary_where_no_other_is() -> None:
    assert fork("w___w__", settled="sss----") == ABSENT  # less than half
    assert fork("w___w__", settled="ssss---") == 3
    assert fork("w___w__", settled="sssssss") == ABSENT  # nothing is left after it
    assert fork("w___w__", settled="-sssss-") == ABSENT  # it must lead
    assert fork("ww._w__", settled="ssss---") == 2


def test_positions_settle_when_what_is_proposed_stays_the_same() -> None:
    memory = Stability(6, steps=2)
    for tokens in ([6, 6, 7], [6, 7, 7], [6, 7, 7], [6, 7, 7]):
        memory.update(np.arange(2, 2 + len(tokens)), np.array(tokens, np.int32))
    assert memory.settled(0, 6).tolist() == [False, False, True, True, True, False]
    memory.update(np.arange(2, 5), np.array([8, 7, 7], np.int32))
    assert memory.settled(2, 5).tolist() == [False, True, True]


def test_the_first_end_token_counts() -> None:
    ((fact,),) = statuses(snapshot("w_wE_E_"))
    assert (fact.end_at, fact.open) == (3, 3)


def test_the_first_token_of_the_marked_classes_is_found() -> None:
    (fact,), (other,) = statuses(snapshot("w_/w/_", start=5, marks=LINE), snapshot("w/"))
    assert (fact.mark_at, other.mark_at) == (7, ABSENT)
    ((left, right),) = statuses(snapshot("w_|/", "w/", marks=LINE))
    assert (left.mark_at, right.mark_at) == (ABSENT, 4)


def test_lanes_and_requests_do_not_see_each_other_and_speak_in_canvas_positions() -> None:
    (left, middle), (right,) = statuses(snapshot("ww1", ".2_w", start=10), snapshot("w.wE", start=30))
    assert left == LaneStatus(0, ABSENT, ABSENT)
    assert middle == LaneStatus(1, ABSENT, ABSENT)
    assert right == LaneStatus(0, 31, 33)


def test_what_lies_between_two_lanes_belongs_to_neither() -> None:
    ((left, right),) = statuses(snapshot("w_w|.wE.w", "w.w_"))
    assert left == LaneStatus(1, ABSENT, ABSENT)
    assert right == LaneStatus(1, 9, ABSENT)


@pytest.mark.parametrize("letters", ["w_", "w_.", "w_E", "www_,", "1w._/", "12_.E/", "w./(`"])
def test_a_request_has_the_same_status_alone_and_batched_with_others(letters: str) -> None:
    rng = random.Random(7)
    others = [snapshot("w.w_", "_.w"), snapshot("w1.w/"), *[snapshot("1_/")] * FEW]
    nestings = [Nesting(), Nesting(bare=False), CODE]
    for boundary in Boundary:
        for _ in range(50 if ALL else 20):
            lanes = ["".join(rng.choices(letters, k=rng.randint(1, 6))) for _ in range(rng.randint(1, 3))]
            text = [lane + rng.choice(["", "|w", "|ww", "|/"]) for lane in lanes[:-1]] + lanes[-1:]
            one = snapshot(
                *text,
                start=rng.randrange(9),
                min_fill=rng.choice([0, 0.5]),
                boundary=boundary,
                nesting=rng.choice(nestings),
                marks=rng.choice([0, COMMA]),
            )._replace(crowded=rng.random() < 0.3)
            for lane in one.lanes[:-1]:
                lane.role = rng.choice([*Role])
            alone = lane_statuses([one], vocabulary())
            for at in (0, 1, 2):
                batch = [*others[:at], one, *others[at:]]
                assert alone == lane_statuses(batch, vocabulary())[at : at + 1], text


def test_min_fill_is_a_share_of_what_lies_before_the_boundary() -> None:
    assert fork("w___.__", min_fill=0.4) == 4
    assert fork("w___.__", min_fill=0.41) == ABSENT


SENTENCE_ENDS = [".", "?", "!", " .", '."', ".)", "\u3002", "\uff1f", "\u0964", "\u061f", "\u1362", "\u104b", "\u17d4"]


@pytest.mark.parametrize(
    ("pieces", "kind"),
    [
        (SENTENCE_ENDS, SENTENCE),
        (["\n", "\n    ", "\n\n", ".\n", ":\n"], LINE),
        ([",", ", ", "\u3001", "\uff0c", "\u060c"], COMMA),
    ],
    ids=["sentence", "line", "comma"],
)
def test_boundaries_are_known_in_any_script_and_nothing_else_is_one(pieces: list[str], kind: int) -> None:
    others = ["...", ";", "a.", "1", "", " ", "\nword", ""]
    classes = Vocabulary([*pieces, *others], mask_id=len(pieces) + 7, end_ids=[]).classes
    assert (classes[: len(pieces)] & kind).all()
    assert not (classes[len(pieces) :] & (SENTENCE | LINE)).any()


def test_a_tokenizer_without_a_boundarys_tokens_is_noticed() -> None:
    bare = Vocabulary(["a", "b", ""], mask_id=2, end_ids=[])
    assert {boundary for boundary in Boundary if boundary.known_to(bare)} == {Boundary.STRIDE, Boundary.STABLE}
    lines = Vocabulary(["a", "\n", ""], mask_id=2, end_ids=[])
    assert Boundary.CODE.known_to(lines)
    assert not Boundary.PERIOD.known_to(lines)
    assert all(boundary.known_to(vocabulary()) for boundary in Boundary)


@pytest.mark.parametrize("boundary", [Boundary.AUTO, Boundary.CODE, Boundary.COMMA, Boundary.PERIOD_COMMA])
def test_boundaries_do_not_depend_on_where_the_first_live_lane_starts(boundary: Boundary) -> None:
    """Random texts, read from their beginning and from the middle with what was open there."""
    rng, letters = random.Random(5), "wwww../12,`()\":='N"
    for _ in range(150):
        text = "".join(rng.choice(letters) for _ in range(rng.randint(6, 24)))
        cut = rng.randint(1, len(text) - 4)
        start = Nesting.of(boundary, ids(""), vocabulary())
        middle = start.after(ids(text[:cut]), vocabulary())
        whole = snapshot(text, min_fill=0, boundary=boundary, nesting=start)
        part = snapshot(text[cut:], start=cut, min_fill=0, boundary=boundary, nesting=middle)
        ((all_,),), ((late,),) = statuses(whole), statuses(part)
        if all_.fork_at > cut:
            assert late.fork_at == all_.fork_at, (text, cut)
        else:
            assert late.fork_at == ABSENT, (text, cut)


def test_an_answer_is_about_to_end_where_the_first_sure_end_token_is_proposed() -> None:
    spans = [EndSpan(7, 10, 14, 0.5), EndSpan(7, 20, 23, 0.5), EndSpan(8, 5, 9, math.inf), EndSpan(9, 0, 4, 0.9)]
    everywhere = [*range(15)]
    assert predicted_ends(spans, everywhere, [0.4] * 5 + [0.5] * 10) == {7: (21, 5)}
    assert predicted_ends(spans, everywhere, [0.95] * 15) == {7: (10, 0), 9: (0, 11)}
    assert predicted_ends(spans, [3, 12, 13], [0.6, 0.89, 0.9]) == {7: (13, 3), 9: (2, 13)}
    assert predicted_ends(spans, [], []) == {}
