"""The biases of a request: penalties count the answer as the step finds it, and no token is named twice."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from asynclane.scheduler.logit_bias import Biasing, Preferences

from ..support.fakes import END, IDS, MASK, vocabulary

PROMPT = 10
NONE = np.zeros(0, np.int32)


def ids(letters: str) -> np.ndarray:
    return np.array([IDS[letter] for letter in letters], np.int32)


def biasing(preferences: Preferences, canvas: np.ndarray, suffix: np.ndarray = NONE) -> Biasing:
    return Biasing(preferences, vocabulary(), np.full(PROMPT, IDS["1"], np.int32), canvas, suffix)


def biases(preferences: Preferences, canvas: str, end: int = 1 << 30) -> list[tuple[int, int, dict[int, float]]]:
    tokens = np.array([IDS[letter] for letter in canvas], np.int32)
    found = biasing(preferences, np.full_like(tokens, MASK)).at(tokens, end)
    assert all(len(set(bias.tokens.tolist())) == len(bias.tokens) for bias in found)
    return [
        (bias.start - PROMPT, bias.end - PROMPT, dict(zip(bias.tokens.tolist(), bias.deltas.tolist(), strict=True)))
        for bias in found
    ]


def test_penalties_count_every_committed_token_of_the_answer_whichever_lane_it_is_in() -> None:
    x, y = IDS["x"], IDS["y"]
    assert biases(Preferences(0.5, 0.25), "x_xy__x") == [(0, 7, {x: -1.25, y: -0.75})]


def test_what_lies_after_the_end_of_the_answer_does_not_count() -> None:
    assert biases(Preferences(presence=1.0), "x_Ey", end=2) == [(0, 4, {IDS["x"]: -1.0})]


def test_a_bias_adds_to_the_penalty_and_a_ban_stays_one() -> None:
    x, y = IDS["x"], IDS["y"]
    wanted = {x: 1.0, y: -math.inf}
    assert biases(Preferences(presence=1.0, bias={x: 2.0, y: -math.inf}), "xy") == [(0, 2, wanted)]


def test_ends_and_stops_are_banned_where_the_answer_may_not_end() -> None:
    x = IDS["x"]
    assert biases(Preferences(ignore_end=True), "__") == [(0, 2, {END: -math.inf})]
    early = biases(Preferences(min_tokens=3, stops=(x,), bias={x: 1.0, 2: 1.0}), "____x")
    assert early == [(0, 3, {x: -math.inf, 2: 1.0, END: -math.inf}), (3, 5, {x: 1.0, 2: 1.0})]
    assert biases(Preferences(min_tokens=9), "__") == [(0, 2, {END: -math.inf})]


def test_before_anything_is_committed_penalties_add_nothing() -> None:
    assert MASK not in vocabulary().classes.nonzero()[0]
    assert biases(Preferences(1.0, 1.0), "____") == []


def test_repetition_counts_all_that_was_given_and_the_answer_and_is_no_penalty_of_others() -> None:
    x, y, one = (IDS[letter] for letter in "xy1")
    canvas = np.array([MASK, MASK, y], np.int32)  # y was given
    (bias,) = biasing(Preferences(presence=1.0, repetition=2.0, bias={5: 1.0}), canvas, ids("w")).at(ids("x_y"), 9)
    found = dict(zip(bias.tokens.tolist(), zip(bias.deltas.tolist(), bias.factors.tolist(), strict=True), strict=True))
    assert found == {x: (-1.0, 2.0), y: (0.0, 2.0), one: (0.0, 2.0), IDS["w"]: (0.0, 2.0), 5: (1.0, 1.0)}


def test_what_was_given_within_the_canvas_is_not_the_answers() -> None:
    canvas = np.array([MASK, IDS["y"], MASK], np.int32)
    (bias,) = biasing(Preferences(frequency=1.0), canvas).at(ids("xyx"), 9)
    assert dict(zip(bias.tokens.tolist(), bias.deltas.tolist(), strict=True)) == {IDS["x"]: -2.0}


@pytest.mark.parametrize("repetition", [1.0, 1.5])
def test_the_tokens_of_a_prompt_are_sorted_once(repetition: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of a long prompt sorts the tokens of its answer alone, and finds what a sum over all of them is."""
    rng, first = np.random.default_rng(1), 1000
    prompt, answer = (rng.integers(first, 6000, size).astype(np.int32) for size in (4000, 50))
    bias = {int(token): 0.5 for token in rng.integers(first, 6000, 200)}
    wanted = Preferences(presence=0.5, frequency=0.25, bias=bias, repetition=repetition)
    biasing = Biasing(wanted, vocabulary(), prompt, np.full(60, MASK, np.int32), NONE)
    sizes: list[int] = []
    sort = np.unique

    def counted(values: np.ndarray, **options: bool) -> object:
        sizes.append(len(values))
        return sort(values, **options)

    monkeypatch.setattr(np, "unique", counted)
    (found,) = biasing.at(np.append(answer, [MASK] * 10), 60)
    assert sizes == [len(answer)]
    times, repeated = Counter(answer.tolist()), {*prompt.tolist(), *answer.tolist()} if repetition != 1 else set()
    expected = {
        token: (
            bias.get(token, 0.0) - 0.25 * (times[token] + 2 * (token in times)),
            repetition if token in repeated else 1,
        )
        for token in {*bias, *times, *repeated}
    }
    factors = np.ones(len(found.tokens)) if found.factors is None else found.factors
    pairs = zip(found.deltas.tolist(), factors.tolist(), strict=True)
    assert dict(zip(found.tokens.tolist(), pairs, strict=True)) == expected
    assert len(found.tokens) == len(expected)
