"""Answer templates: the gaps and the texts between them are the answer, and only what fills the gaps is the model's."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from asynclane.bench.eval.decoders import parse_decoder
from asynclane.bench.load.problems import problems
from asynclane.bench.quality.templates import form, measure
from asynclane.server.engine.messages import AnswerOptions, Usage

from ..support.cases import TEXT

QUESTIONS = problems(21, 4, ("multi",))
Requests = Sequence[tuple[list[int], AnswerOptions]]


@pytest.mark.parametrize("problem", QUESTIONS, ids=lambda problem: str(len(problem.expected)))
def test_the_parts_of_a_template_are_the_answer_and_its_tokens(problem: Any) -> None:
    """A gap for each solution, and one for the last result."""
    one = form(problem)
    pieces = [one.tag, *[piece for pair in one.gaps for piece in pair if piece]]
    assert "".join(pieces) == problem.answer
    assert len(one.gaps) == len(problem.expected) + 1
    assert one.gaps[-1] == (f" {problem.expected[-1]}", "")
    tokens = [token for piece in pieces for token in TEXT.encode(piece, specials=False)]
    assert tokens == TEXT.encode(problem.answer, specials=False)


def test_texts_are_given_and_gaps_are_as_long_as_their_texts() -> None:
    """With the right texts in the gaps all answers are right, with those of another problem none."""
    forms, seen = [form(problem) for problem in QUESTIONS], list[AnswerOptions]()

    def answers(requests: Requests, shift: int) -> list[Any]:
        seen.extend(options for _, options in requests)
        shown = [forms[(number + shift) % len(forms)] for number in range(len(forms))]
        texts = ["".join(piece for pair in one.gaps for piece in pair) for one in shown]
        return [SimpleNamespace(text=text, usage=Usage(completion_tokens=1)) for text in texts]

    for shift, right in ((0, len(forms)), (1, 0)):
        offline = SimpleNamespace(
            parts=SimpleNamespace(text=TEXT), answer_each=lambda requests, shift=shift: answers(requests, shift)
        )
        found = measure(offline, parse_decoder("nap", 256), forms)  # type: ignore[arg-type]
        assert (found.right, found.count, found.way) == (right, len(forms), "nap")
    first, options = forms[0], seen[0]
    assert [size for size, _ in options.template] == [len(TEXT.encode(gap, specials=False)) for gap, _ in first.gaps]
    assert options.max_tokens == len(TEXT.encode(QUESTIONS[0].answer, specials=False)) - len(TEXT.encode(first.tag))
    assert options.ignore_end
