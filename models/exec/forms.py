"""Plans that were packed before, but for a few numbers: most steps of a single stream.

The words of a plan of one row follow from its form: what the row looks like from its start on. Its slot, start, visible
keys and step only add to some of them. So a plan whose form is known costs two calls of numpy instead of thirty. A form
becomes known when it comes again: rows with lanes that fork seldom look alike.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...scheduler.contract import Ints, Row, StepPlan
from .pack import DRAW_WORDS, Shape, pack_into
from .shapes import Fit, ShapeSet

LONGEST = 256  # positions of a row: long ones are seldom alike
MOST_FORMS = 256
NOTHING, START, SLOT, VISIBLE, STEP = range(5)  # what is added to a word
ADDED = {
    **dict.fromkeys(("positions", "targets", "stored", "projected_stored"), START),
    **dict.fromkeys(("slots", "target_slots", "row_slots"), SLOT),
    "visible": VISIBLE,
}  # by section


@dataclass(frozen=True, slots=True)
class Known:
    """The words of a row whose numbers are all 0, and which number each word adds: both [words]."""

    words: Ints
    added: npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Form:
    """The padding of a plan, and how it is packed. None: it is not known, and packed as it is."""

    fit: Fit
    known: Known | None
    row: Row | None  # one of this form: it keeps the objects alive whose ids are in the form's key

    def pack_into(self, words: Ints, plan: StepPlan, shift: int) -> None:
        """Fill `words` [of the padding's shape] with a plan of this form."""
        if self.known is None:
            pack_into(words, plan, self.fit.padding.shape, shift)
            return
        np.array(_numbers(plan.rows[0]), np.int32).take(self.known.added, out=words, mode="clip")
        words += self.known.words


class Forms:
    """The forms of a set of shapes. At most `MOST_FORMS` are kept."""

    def __init__(self, shapes: ShapeSet) -> None:
        self._shapes = shapes
        self._forms: dict[Hashable, Form] = {}

    def of(self, plan: StepPlan) -> Form:
        key = _key(plan.rows[0]) if len(plan.rows) == 1 else None
        if key is None:
            return Form(self._shapes.fit(plan), None, None)
        form = self._forms.get(key)
        if form is None:
            if len(self._forms) == MOST_FORMS:
                self._forms.clear()
            form = self._forms[key] = Form(self._shapes.fit(plan), None, plan.rows[0])
        elif form.known is None:
            form = self._forms[key] = self._known(plan, form.fit)
        return form

    def _known(self, plan: StepPlan, fit: Fit) -> Form:
        row = plan.rows[0]
        shape = fit.padding.shape
        words = np.empty(shape.words, np.int32)
        pack_into(words, plan, shape, self._shapes.config.logit_shift)
        added = _added(shape, row)
        words -= np.array(_numbers(row), np.int32)[added]
        return Form(fit, Known(words, added), row)


def _numbers(row: Row) -> tuple[int, ...]:
    """The numbers of a row, in the order of `NOTHING`, `START`, `SLOT`, `VISIBLE` and `STEP`."""
    return 0, row.start, row.slot, row.visible, row.step


def _key(row: Row) -> Hashable:
    """Rows with the same key have the same form. None: the row has what changes from step to step."""
    _, start, end, _, spans, sampling, _, biases, ranks = row[:9]
    size = end - start
    if size > LONGEST or not row.plain:
        return None
    parts = tuple([(first - start, last - start, id(rule), *flags) for first, last, rule, *flags in spans])
    if not biases:
        return size, sampling, ranks, parts
    within = [
        (min(max(bias.start, start), end) - start, min(max(bias.end, start), end) - start, id(bias)) for bias in biases
    ]
    return size, sampling, ranks, parts, tuple(within)


def _added(shape: Shape, row: Row) -> npt.NDArray[np.intp]:
    """[shape.words] the number that is added to each word. Padding adds nothing."""
    added = np.full(shape.words, NOTHING)
    projected, start = sum([span.end - span.start for span in row.spans]), 0
    counts = dict.fromkeys(("positions", "slots", "stored"), row.tokens)
    counts |= dict.fromkeys(("targets", "target_slots", "projected_stored"), projected)
    for name, size in shape.sections.items():
        if name in ADDED:
            added[start : start + counts.get(name, 1)] = ADDED[name]
        elif name == "draws":
            steps = start + size // DRAW_WORDS * (DRAW_WORDS - 1)  # they come last
            added[steps : steps + projected] = STEP
        start += size
    return added
