"""Plans whose form is known have the words that packing gives them."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from asynclane.bench.steps.shapes import SHAPES
from asynclane.models.exec.forms import LONGEST, MOST_FORMS, Forms
from asynclane.models.exec.pack import pack_rows
from asynclane.models.exec.shapes import ShapeSet, default_sizes
from asynclane.models.numerics import Numerics
from asynclane.scheduler.contract import (
    GREEDY,
    Bias,
    DeviceCommitRule,
    Measure,
    Restriction,
    Row,
    RowCopy,
    Sampling,
    Span,
    StepPlan,
)

from ..support.scale import ALL

RULES = [DeviceCommitRule(1, 0.9), DeviceCommitRule(2, 0.5, last_free=True)]
RULES += [replace(RULES[0], measure=Measure.ENTROPY, noise=0.5)]
SAMPLINGS = [GREEDY, Sampling(0.7, 0.9, (1 << 63) - 1, 3, 0.1)]
BAN = np.arange(3, dtype=np.int32), np.full(3, -np.inf, np.float32)
BIASES = [Bias(0, 60, *BAN), Bias(60, 9999, *BAN)]


def shapes(shift: int) -> ShapeSet:
    config = replace(SHAPES["llada-8b"], logit_shift=shift)
    return ShapeSet(config, Numerics(torch.bfloat16), 8, default_sizes(512))


def words_of(forms: Forms, plan: StepPlan, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """Words from a form, and those that packing gives."""
    form = forms.of(plan)
    found, wanted = (np.full(form.fit.padding.shape.words, 12345, np.int32) for _ in range(2))
    form.pack_into(found, plan, shift)
    pack_rows(wanted, plan, form.fit.padding.shape, shift)
    return found, wanted


def random_row(rng: random.Random, shift: int) -> Row:
    start, size = rng.randrange(1, 100), rng.choice([4, 8, 32, LONGEST])
    rule, cut = rng.choice(RULES), start + shift + rng.randrange(1, 3)
    spans: list[tuple[Span, ...]] = [(), (Span(start + shift, start + size, rule),)]
    spans += [(Span(start + shift, cut, rule, False), Span(cut + 1, start + size, rng.choice(RULES), True, True))]
    biases = (*BIASES,) if rng.random() < 0.3 else ()
    of_request = rng.choice(SAMPLINGS), rng.randrange(1000), biases, rng.choice([None, None, 0, 3])
    return Row(rng.randrange(8), start, start + size, start + size + rng.randrange(3), rng.choice(spans), *of_request)


@pytest.mark.parametrize("shift", [0, 1])
def test_a_known_form_packs_as_an_unknown_one(shift: int) -> None:
    rng, set_of = random.Random(5), shapes(shift)
    forms = Forms(set_of)
    for _ in range(1500 if ALL else 500):
        plan = StepPlan((), (random_row(rng, shift),))
        assert forms.of(plan).fit == set_of.fit(plan)
        assert forms.of(plan).known is not None
        found, wanted = words_of(forms, plan, shift)
        assert np.array_equal(found, wanted)
        assert len(forms._forms) <= MOST_FORMS


def test_a_form_is_found_again_at_another_place() -> None:
    forms = Forms(shapes(0))
    first, second = (
        Row(slot, at, at + 8, at + 8, (Span(at + 4, at + 8, RULES[0]),), GREEDY, step)
        for slot, at, step in [(0, 4, 1), (5, 200, 9)]
    )
    assert forms.of(StepPlan((), (first,))).known is None
    assert forms.of(StepPlan((), (second,))).known is not None
    assert forms.of(StepPlan((), (first,))) is forms.of(StepPlan((), (second,)))
    later = [
        row._replace(biases=(BIASES[0],), start=at, end=at + 8, spans=()) for row, at in [(first, 70), (second, 90)]
    ]
    forms.of(StepPlan((), (later[0],)))
    assert forms.of(StepPlan((), (later[0],))) is forms.of(StepPlan((), (later[1],)))
    other = second._replace(spans=(Span(204, 208, RULES[1]),))
    assert forms.of(StepPlan((), (other,))) is not forms.of(StepPlan((), (second,)))


def test_what_changes_in_each_step_has_no_form() -> None:
    forms = Forms(shapes(0))
    row = Row(0, 0, 8, 8, (Span(0, 8, RULES[0]),), GREEDY, 0)
    rare = [
        row._replace(restriction=Restriction(3, np.zeros(3952, np.int32))),
        row._replace(host_tokens=np.zeros(8, np.int32)),
        row._replace(copy=RowCopy(1, 1)),
        row._replace(end=LONGEST + 1),
    ]
    for plan in [*(StepPlan((), (one,)) for one in rare), StepPlan((), (row, row)), StepPlan((), ())]:
        assert forms.of(plan).known is None
        found, wanted = words_of(forms, plan, 0)
        assert np.array_equal(found, wanted)
