"""A plan padded for a CUDA graph has the numbers of the plan, and padding that does nothing."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch

from asynclane.bench.steps.shapes import SHAPES
from asynclane.kernels.attention.tiles import AttentionConfig
from asynclane.kernels.common.types import SpanRules
from asynclane.kernels.logits import adjust
from asynclane.models.checkpoint.config import read_config
from asynclane.models.exec.pack import (
    NOWHERE,
    UNCHANGED,
    OptionalInputs,
    Shape,
    Tiling,
    pack,
    pack_into,
    pack_nothing,
    pack_rows,
    projected,
    unpack,
)
from asynclane.models.exec.shapes import ShapeSet, default_sizes
from asynclane.models.numerics import Numerics
from asynclane.scheduler.contract import (
    GREEDY,
    MOST_RANKS,
    Bias,
    Denoising,
    DeviceCommitRule,
    Measure,
    Restriction,
    Row,
    RowCopy,
    Sampling,
    Span,
    StepPlan,
)  # fmt: skip

from ..support.driver import MODEL

KNOWN_FIRST = replace(read_config(MODEL), block_size=1, known_first=True)
TILING = Tiling(AttentionConfig(16, 64, 4, 3), queries=16, groups=2, split=True)
CPU = torch.device("cpu")


def random_plan(rng: random.Random, sampled: bool, shift: int = 0) -> StepPlan:
    rows = []
    for slot in rng.sample(range(8), rng.randint(1, 5)):
        start = rng.randint(shift, 40)
        end = start + rng.randint(2, 50)
        cut = rng.randint(start + 1, end)
        rule = DeviceCommitRule(sure=1, threshold=0.5, last_free=True)
        if sampled:
            rule = replace(rule, measure=Measure.ENTROPY, noise=0.25)
        spans = [Span(start, cut, rule), Span(cut, end, DeviceCommitRule(0, 0.9), False)]
        hot = Sampling(rng.random() + 0.1, 0.9, rng.getrandbits(63), 9, 0.25) if sampled else GREEDY
        tokens = np.arange(rng.randint(1, 9), dtype=np.int32)
        deltas = tokens.astype(np.float32) + 1
        factors = deltas + 1 if rng.random() < 0.5 else None
        biases = tuple(Bias(a, b, tokens, deltas, factors) for a, b in [(start - 3, cut), (cut, end)])
        kept = tuple(s for s in spans if s.end > s.start)
        visible = end + rng.randint(0, 9)
        extras = (biases, 3, Restriction(start, np.full(4, slot, np.int32))) if sampled else ((), None, None)
        rows.append(Row(slot, start - shift, end, visible, kept, hot, 7, *extras))
    return StepPlan((), tuple(rows))


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("sampled", [False, True])
def test_padding_changes_no_number_and_adds_none_that_counts(sampled: bool, shift: int) -> None:
    rng = random.Random(3)
    inputs = OptionalInputs(True, True, 256, MOST_RANKS, 8, 4, True) if sampled else OptionalInputs()
    shape = Shape(320, 8, 320, 48, TILING, TILING, inputs)
    for _ in range(25):
        plan = random_plan(rng, sampled, shift)
        words = np.full(shape.words, 12345, np.int32)
        pack_into(words, plan, shape, shift)
        padded: Any = unpack(torch.from_numpy(words), shape)
        plain: Any = pack(plan, CPU, shift)
        for name in (field.name for field in fields(plain)):
            whole, part = getattr(padded, name), getattr(plain, name)
            if isinstance(part, torch.Tensor):
                assert torch.equal(whole[: len(part)], part), name
                nothing = {"positions": NOWHERE}.get(name, 0)
                assert (whole[len(part) :] == (part[-1] if name.endswith("_starts") else nothing)).all()
        for name, whole, part in zip(SpanRules._fields, padded.rules, plain.rules, strict=True):
            if part is None:  # no rule has a budget
                assert whole is None
                assert not sampled
                continue
            assert torch.equal(whole[: len(part)], part), name
            assert (whole[len(part) :] == (part[-1] if name == "starts" else 0)).all()
        optional = "draws", "measures", "biases", "restrictions"
        assert all((getattr(batch, name) is not None) == sampled for batch in (padded, plain) for name in optional)
        if sampled:
            size = len(plain.targets)
            for whole, part in zip(padded.draws, plain.draws, strict=True):
                assert torch.equal(whole[: len(part)], part)
            assert torch.equal(padded.measures.kinds[:size], plain.measures.kinds)
            assert torch.equal(padded.measures.noise[:size], plain.measures.noise)
            assert not padded.measures.kinds[size:].any()
            assert padded.ranks == plain.ranks == MOST_RANKS
            count = len(plan.rows)
            firsts = plain.projected_starts[:-1].tolist()
            assert plain.restrictions.places.tolist() == firsts
            assert padded.restrictions.places.tolist() == firsts + [NOWHERE] * (8 - count)
            assert torch.equal(padded.restrictions.words[:count], plain.restrictions.words)
            assert plain.restrictions.words[:, 3].tolist() == [row.slot for row in plan.rows]
            wanted, got = (torch.ones(320, 16) for _ in range(2))
            adjust(wanted, *plain.biases)
            adjust(got, *padded.biases)
            assert torch.equal(got, wanted)
            assert not torch.equal(got, torch.ones(320, 16))


def test_where_a_network_predicts_one_ahead_states_stand_one_before_what_commits() -> None:
    row = Row(
        0, 4, 12, 12, (Span(5, 8, DeviceCommitRule(1, 0.9)), Span(10, 12, DeviceCommitRule(1, 0.9))), Sampling(0.5), 0
    )
    batch = pack(StepPlan((), (row, row._replace(slot=1, start=0))), CPU, shift=1)
    assert batch.targets.tolist() == [5, 6, 7, 10, 11] * 2
    assert batch.positions[batch.projected].tolist() == [4, 5, 6, 9, 10] * 2
    assert batch.slots[batch.projected].tolist() == [0] * 5 + [1] * 5
    assert batch.draws is not None
    assert batch.draws.positions.tolist() == batch.targets.tolist()


def test_rows_that_are_read_in_an_order_of_their_own_are_stored_in_it_and_report_by_position() -> None:
    """Padded or not, beside rows that are not. Their tokens and spans are given by position."""
    rule, tokens = DeviceCommitRule(1, 0.9), np.arange(100, 106, dtype=np.int32)
    order = np.array([10, 12, 15, 11, 13, 14], np.int32)
    spans = Span(11, 13, rule), Span(15, 16, rule)
    row = Row(1, 10, 16, 16, spans, Sampling(0.5), 0, host_tokens=tokens, order=order)
    plan = StepPlan((), (Row(0, 4, 7, 7, (Span(5, 7, rule),), GREEDY, 0), row, row._replace(slot=2)))
    shapes = ShapeSet(KNOWN_FIRST, Numerics(torch.float32), 8, default_sizes(64))
    padding = shapes.fit(plan).padding
    assert padding.body is not None
    assert padding.tail is not None
    words = np.full(padding.shape.words, 12345, np.int32)
    pack_into(words, plan, padding.shape)
    padded = unpack(torch.from_numpy(words), padding.shape)
    for batch in (pack(plan, CPU), padded):
        assert batch.stored is not None
        assert batch.projected_stored is not None
        assert batch.host_tokens is not None
        assert batch.positions.tolist()[:15] == [4, 5, 6, *order, *order]
        assert batch.stored.tolist()[:15] == [4, 5, 6, *range(10, 16), *range(10, 16)]
        assert batch.host_tokens.tolist()[:15] == [UNCHANGED] * 3 + [100, 102, 105, 101, 103, 104] * 2
        assert batch.targets.tolist()[:8] == [5, 6, 11, 12, 15, 11, 12, 15]
        assert batch.projected.tolist()[:8] == [1, 2, 6, 4, 5, 12, 10, 11]
        assert batch.projected_stored.tolist()[:8] == [5, 6, 13, 11, 12, 13, 11, 12]
    assert padded.stored is not None
    assert (padded.stored[15:] == NOWHERE).all()
    assert (padded.positions[15:] == NOWHERE).all()


def test_a_network_that_reads_known_tokens_first_has_one_set_of_shapes() -> None:
    shapes = ShapeSet(KNOWN_FIRST, Numerics(torch.float32), 8, default_sizes(64))
    plain = Row(0, 0, 9, 9, (Span(3, 9, DeviceCommitRule(1, 0.9)),), GREEDY, 0)
    ordered = plain._replace(order=np.array([0, 2, *range(3, 9), 1], np.int32))
    fits = [shapes.fit(StepPlan((), (row,))) for row in (plain, ordered)]
    assert fits[0].padding is fits[1].padding
    for row, fit in zip((plain, ordered), fits, strict=True):
        shape, plan = fit.padding.shape, StepPlan((), (row,))
        words = np.full(shape.words, 12345, np.int32)
        pack_into(words, plan, shape)
        batch, unpadded = unpack(torch.from_numpy(words), shape), pack(plan, CPU)
        assert batch.stored is not None
        assert (unpadded.stored is None) == (row is plain)
        assert batch.stored.tolist()[:9] == list(range(9))
        assert torch.equal(batch.projected[:6], unpadded.projected)


def test_a_bias_reaches_the_projected_positions_of_its_range_and_no_other() -> None:
    spans = tuple(Span(a, b, DeviceCommitRule(1, 0.9)) for a, b in [(10, 14), (20, 26)])
    none = Row(1, 0, 8, 8, (Span(2, 5, DeviceCommitRule(1, 0.9)),), GREEDY, 0)
    some = Row(
        0, 5, 30, 30, spans, GREEDY, 0, (Bias(0, 12, ONE, HALF), Bias(12, 22, ONE, HALF), Bias(26, 40, ONE, HALF))
    )
    batch = pack(StepPlan((), (none, some)), CPU)
    assert batch.biases is not None
    ranges = list(zip(batch.biases.begins.tolist(), batch.biases.ends.tolist(), strict=True))
    assert ranges == [(3, 5), (5, 9), (13, 13)]


ONE, HALF = np.array([3], np.int32), np.array([0.5], np.float32)


def test_tiles_cover_every_query_of_every_row_once() -> None:
    rng = random.Random(4)
    shape = Shape(320, 8, 320, 48, TILING, TILING)
    for _ in range(20):
        plan = random_plan(rng, sampled=False)
        words = np.zeros(shape.words, np.int32)
        pack_into(words, plan, shape)
        attention = unpack(torch.from_numpy(words), shape).attention
        assert attention is not None
        tiles = attention.tiles.tolist()
        covered = [
            (row, query)
            for row, first, split, _ in tiles
            if row >= 0 and split == 0
            for query in range(first, first + TILING.queries)
        ]
        wanted = [(number, query) for number, row in enumerate(plan.rows) for query in range(row.tokens)]
        assert len(set(covered)) == len(covered)
        assert set(wanted) <= set(covered)
        assert len({row for row, _ in covered}) == len(plan.rows)


def test_padding_alone_is_a_step_of_nothing() -> None:
    inputs = OptionalInputs(True, True, 256, MOST_RANKS, 8, 4, True, True)
    shape = Shape(32, 8, 16, 16, TILING, TILING, inputs)
    words = np.full(shape.words, 12345, np.int32)
    pack_nothing(words, shape)
    batch = unpack(torch.from_numpy(words), shape)
    assert batch.attention is not None
    assert (batch.positions == NOWHERE).all()
    assert (batch.host_tokens == UNCHANGED).all()
    assert (batch.attention.tiles[:, 0] == -1).all()
    assert not batch.rules.starts.any()


def test_every_plan_fits_its_shape() -> None:
    for sizes in (default_sizes(512), (40, 100), ()):
        shapes = ShapeSet(read_config(MODEL), Numerics(torch.float32), 8, sizes)
        for seed in range(40):
            plan = random_plan(random.Random(seed), sampled=seed % 2 == 0)
            shape = shapes.fit(plan).padding.shape
            pack_into(np.empty(shape.words, np.int32), plan, shape)
            assert plan.tokens <= shape.tokens
            assert projected(plan) <= shape.projected


def test_a_sampled_row_without_spans_needs_no_draws_and_a_plan_beyond_a_shape_is_refused() -> None:
    """It only renews keys; a greedy row beside it is packed as if it were alone."""
    shapes = ShapeSet(read_config(MODEL), Numerics(torch.float32), 4, default_sizes(64))
    hot = Row(0, 0, 9, 9, (), Sampling(0.7), 0)
    plan = StepPlan((), (hot, Row(1, 0, 9, 9, (Span(0, 9, DeviceCommitRule(1, 0.5)),), GREEDY, 0)))
    shape = shapes.fit(plan).padding.shape
    assert not shape.inputs.sampled
    pack_into(np.empty(shape.words, np.int32), plan, shape)
    shape = replace(shape, rows=1)
    with pytest.raises(ValueError, match="do not fit"):
        pack_into(np.empty(shape.words, np.int32), plan, shape)


RULES = [DeviceCommitRule(1, 0.9), DeviceCommitRule(2, 0.5, last_free=True)]
RULES += [replace(RULES[0], measure=Measure.ENTROPY, noise=0.5)]
RULES += [DeviceCommitRule(1, -32.0, measure=Measure.ENTROPY, budget=0.25, inclusive=True)]
SAMPLINGS = [GREEDY, Sampling(0.7, 0.9, (1 << 63) - 1, 3, 0.1), Sampling(0.7, seed=-5)]
BAN = np.arange(3, dtype=np.int32), np.full(3, -np.inf, np.float32)


def random_row(rng: random.Random, shift: int) -> Row:
    start, size = rng.randrange(1, 100), rng.choice([4, 8, 32, 300])
    rule, cut = rng.choice(RULES), start + shift + rng.randrange(1, 3)
    spans: list[tuple[Span, ...]] = [(), (Span(start + shift, start + size, rule),)]
    spans += [(Span(start + shift, cut, rule, False), Span(cut + 1, start + size, rng.choice(RULES), True, True))]
    biases = (Bias(0, 60, *BAN), Bias(60, 9999, *BAN)) if rng.random() < 0.3 else ()
    of_request = rng.choice(SAMPLINGS), rng.randrange(1000), biases, rng.choice([None, None, 0, 3])
    return Row(rng.randrange(8), start, start + size, start + size + rng.randrange(3), rng.choice(spans), *of_request)


@pytest.mark.parametrize("shift", [0, 1])
def test_one_row_is_packed_as_several_are(shift: int) -> None:
    config = replace(SHAPES["llada-8b"], logit_shift=shift)
    shapes, rng = ShapeSet(config, Numerics(torch.bfloat16), 8, default_sizes(512)), random.Random(5)
    for number in range(600):
        row = random_row(rng, shift)
        if number % 10 == 0:  # what few rows have
            tokens = np.arange(row.tokens, dtype=np.int32)
            rare: list[dict[str, Any]] = [{"host_tokens": tokens}, {"copy": RowCopy(1, 1)}]
            if row.spans:
                rare.append({"restriction": Restriction(row.spans[0].start, np.zeros(3952, np.int32))})
            row = row._replace(**rng.choice(rare))
        plan = StepPlan((), (row,))
        shape = shapes.fit(plan).padding.shape
        found, wanted = (np.full(shape.words, 12345, np.int32) for _ in range(2))
        pack_into(found, plan, shape, shift)
        pack_rows(wanted, plan, shape, shift)
        assert np.array_equal(found, wanted)


@pytest.mark.parametrize("first", [True, False])
def test_one_canvas_is_packed_as_several_are(first: bool) -> None:
    shapes = ShapeSet(SHAPES["diffusion-gemma-26b"], Numerics(torch.bfloat16), 8, default_sizes(512))
    tokens = np.arange(1000, 1256, dtype=np.int32)
    spans = (Span(300, 556, RULES[2]),)
    row = Row(3, 300, 556, 556, spans, SAMPLINGS[1], 5, host_tokens=tokens, denoising=Denoising(0.6, first))
    text = Row(3, 44, 300, 300, (), SAMPLINGS[1], 5, host_tokens=tokens)
    shape = shapes.fit(StepPlan((), (row,))).padding.shape
    for plan in (StepPlan((), (row,)), StepPlan((), (text,))):
        found, wanted = (np.full(shape.words, 12345, np.int32) for _ in range(2))
        pack_into(found, plan, shape)
        pack_rows(wanted, plan, shape)
        assert np.array_equal(found, wanted)
        assert (np.isin(tokens, found)).all()


def test_one_row_beyond_a_shape_is_refused() -> None:
    row = Row(0, 0, 9, 9, (Span(4, 9, RULES[0]),), GREEDY, 0)
    shape = Shape(16, 1, 16, 4, TILING, TILING)
    for less in (replace(shape, tokens=8), replace(shape, projected=4), replace(shape, spans=0)):
        with pytest.raises(ValueError, match="do not fit"):
            pack_into(np.empty(less.words, np.int32), StepPlan((), (row,)), less)
    with pytest.raises(ValueError, match="lacks the position"):
        pack_into(np.empty(shape.words, np.int32), StepPlan((), (row._replace(start=4),)), shape, shift=1)
