"""Answers with a grammar: what settles after a step, what stays as a draft, and what comes instead of an end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asynclane.scheduler.contract import GREEDY, Row, StepResult
from asynclane.scheduler.grammar_guide import Continuation, GrammarGuide
from asynclane.scheduler.logprobs import DRAFTED, FORCED

from ..support.fakes import IDS, LETTERS, MASK, vocabulary
from ..support.grammars import Verses, tokens_of

LENGTH, PROMPT = 16, 5


class Closing(Verses):
    """Where the answer may not end, a bracket comes instead of an end."""

    def closer(self, words: np.ndarray) -> int | None:
        return IDS[")"] if IDS[")"] in tokens_of(words) else None


def ids(text: str) -> np.ndarray:
    return np.array([IDS[letter] for letter in text], np.int32)


def spelt(tokens: Sequence[int]) -> str:
    return "".join(LETTERS[token] for token in tokens)


def guide(constraint: type[Verses] = Verses, least: float = 0.0) -> GrammarGuide:
    return GrammarGuide(constraint(), vocabulary(), LENGTH, least)


def planned(guide: GrammarGuide, canvas: str) -> Row:
    """The row of the canvas's last positions, of which the first is open."""
    frontier = LENGTH - len(canvas)
    start, end = PROMPT + frontier, PROMPT + LENGTH
    row = Row(0, start, end, end, (), GREEDY, 0, host_tokens=ids(canvas))
    return guide.restrict(row, PROMPT, frontier)


def taken(
    guide: GrammarGuide, frontier: int, committed: str, proposed: str, confidence: Sequence[float] = ()
) -> Continuation:
    """The continuation after a step that began at the frontier, five places into its result."""
    planned(guide, "_" * (LENGTH - frontier))
    size = 5 + len(committed)
    tokens, proposals = np.full(size, MASK, np.int32), np.full(size, MASK, np.int32)
    tokens[5:], proposals[5:] = ids(committed), ids(proposed)
    by_place = np.ones(size)
    by_place[5 : 5 + len(confidence)] = confidence
    return guide.take(frontier, frontier, StepResult(tokens, proposals, by_place, 0.0), slice(5, size), None)


def test_what_has_committed_settles_up_to_the_first_open_position_and_the_rest_becomes_drafts() -> None:
    made = guide()
    text = taken(made, 0, "_o,_2_", "2o,o2o")
    assert spelt(text.tokens) == "2o,"
    assert text.found == [5, 6, FORCED]
    assert text.drafted.tolist() == [4]
    assert spelt(made.drafts) == "____2" + "_" * 11


def test_a_row_shows_the_drafts_and_restricts_the_first_open_position() -> None:
    made = guide()
    taken(made, 0, "__,_2_", "2o,o2o")
    row = planned(made, "_" * 15)
    assert row.host_tokens is not None
    assert spelt(row.host_tokens.tolist()) == "_,_2" + "_" * 11
    assert row.restriction is not None
    assert row.restriction.position == PROMPT + 1
    assert tokens_of(row.restriction.words) == set(range(5, 19, 2))


def test_a_draft_settles_when_its_turn_comes_and_is_scored_once() -> None:
    made = guide()
    taken(made, 0, "__,_2_", "2o,o2o")
    text = taken(made, 1, "_,_2_", "o,y2o")
    assert (spelt(text.tokens), text.found) == ("o,", [5, FORCED])
    assert text.drafted.tolist() == [], "it is no new one"
    text = taken(made, 3, "_2__", "y2,o")
    assert (spelt(text.tokens), text.found) == ("y2,", [5, DRAFTED, FORCED])


def test_a_draft_that_the_grammar_refuses_is_a_mask_again_with_all_after_it() -> None:
    made = guide()
    taken(made, 0, "__,_x_2", "2o,oxo2")
    text = taken(made, 1, "_,_x_2", "o,yxo2")
    assert spelt(made.drafts[4:7]) == "x_2"
    text = taken(made, 3, "_x_2", "yxo2")
    assert spelt(text.tokens) == "y"
    assert (made.drafts == MASK).all()


def test_a_text_other_than_the_forced_one_leaves_no_drafts() -> None:
    made = guide()
    text = taken(made, 0, "_ox_2", "2oxo2")
    assert spelt(text.tokens) == "2o,"
    assert (made.drafts == MASK).all()


def test_a_draft_needs_confidence_and_ends_no_answer() -> None:
    made = guide(least=0.99)
    text = taken(made, 0, "__,2oE", "2o,2oE", [0.3, 0.3, 0.999, 0.98, 0.99, 1.0])
    assert spelt(text.tokens) == "2"
    assert spelt(made.drafts[:6]) == "__,_o_"
    taken(made, 1, "_,_o", "o,2o", [0.3, 0.1, 0.3, 0.1])
    assert spelt(made.drafts[:6]) == "____o_", "a draft stays, whatever the network proposes there now"


def test_instead_of_an_end_comes_what_closes() -> None:
    made = guide(Closing)
    row = planned(made, "_" * 16)
    assert row.restriction is not None
    assert tokens_of(row.restriction.words) == {IDS["E"], *range(5, 19, 2)}
    text = taken(made, 0, "_o__", "Eo,2")
    assert spelt(text.tokens) == ")"
    assert text.found == [FORCED], "its score is not that of the end"
    assert not text.ends
    assert (made.drafts == MASK).all(), "the network expected another text"
    text = taken(made, 1, "E___", "E,2o")
    assert spelt(text.tokens) == "),"


def test_an_end_is_not_proposed_where_nothing_closes_and_ends_the_answer_where_it_may() -> None:
    made = guide()
    row = planned(made, "_" * 16)
    assert row.restriction is not None
    assert IDS["E"] not in tokens_of(row.restriction.words)
    for frontier in (0, 3, 6):
        taken(made, frontier, "_o,", "2o,")
    text = taken(made, 9, "_E__", "2EEE")
    assert (spelt(text.tokens), text.ends) == ("2E", True)
