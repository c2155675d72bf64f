"""What a step left in a lane is read off right, on lanes written by hand."""

from __future__ import annotations

import numpy as np
import pytest

from asynclane.scheduler.digest import lane_facts
from asynclane.scheduler.policies.base import ABSENT, LaneFacts
from asynclane.scheduler.vocabulary import DELIMITER, Vocabulary

from ..fakes import END, MASK, vocabulary

IDS = {"_": MASK, "E": END, ".": 2, "/": 3, "1": 4, "2": 5, "w": 6}


def facts(lanes: list[str], starts: list[int] | None = None, min_fill: float = 0.5) -> list[LaneFacts]:
    tokens = [np.array([IDS[letter] for letter in lane], np.int32) for lane in lanes]
    return lane_facts(tokens, starts or [0] * len(lanes), [min_fill] * len(lanes), vocabulary())


@pytest.mark.parametrize(
    ("lane", "fork_at", "open_to_fork"),
    [
        ("ww.ww__", 2, 0),
        ("w_.ww.__", 5, 1),  # the last delimiter counts
        ("ww/w__", 2, 0),  # a line break is one
        (".ww____", ABSENT, 0),  # not at the first position
        ("_www.", ABSENT, 0),  # nor at the last
        ("___._w", ABSENT, 0),  # too little before it
        ("__w._w", 3, 2),
        ("w1.2w_", ABSENT, 0),  # a decimal point
        ("w1._w_", ABSENT, 0),  # perhaps one
        ("w1.ww_", 2, 0),  # a sentence that ends in a number
        ("w1/2w_", 2, 0),
    ],
)
def test_forks_are_found_at_the_last_valid_delimiter(lane: str, fork_at: int, open_to_fork: int) -> None:
    (fact,) = facts([lane])
    assert fact.fork_at == fork_at
    if fork_at != ABSENT:
        assert fact.open_to_fork == open_to_fork
    assert fact.open == lane.count("_")


def test_the_first_end_token_counts_and_masks_before_it() -> None:
    (fact,) = facts(["w_wE_E_"])
    assert (fact.end_at, fact.open_to_end, fact.open) == (3, 1, 3)


def test_lanes_do_not_see_each_other_and_speak_in_canvas_positions() -> None:
    left, middle, right = facts(["ww1", ".2_w", "w.wE"], starts=[10, 20, 30])
    assert left == LaneFacts(0, ABSENT, 0, ABSENT, 0)
    assert middle.open == 1
    assert middle.fork_at == ABSENT
    assert (right.fork_at, right.end_at) == (31, 33)


def test_min_fill_is_a_share_of_what_lies_before_the_delimiter() -> None:
    assert facts(["w___.__"], min_fill=0.4)[0].fork_at == 4
    assert facts(["w___.__"], min_fill=0.41)[0].fork_at == ABSENT


@pytest.mark.parametrize("piece", [".", "?", "!", " .", '."', ".)", "\n", "\n    ", "\u3002", "\uff1f"])
def test_sentence_ends_in_any_script_and_line_breaks_are_delimiters(piece: str) -> None:
    assert Vocabulary([piece, ""], mask_id=1, end_ids=[]).classes[0] & DELIMITER


@pytest.mark.parametrize("piece", ["...", ",", ";", "a.", "1", "", " "])
def test_nothing_else_is_a_delimiter(piece: str) -> None:
    assert not Vocabulary([piece, ""], mask_id=1, end_ids=[]).classes[0] & DELIMITER
