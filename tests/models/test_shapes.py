"""The set of shapes is bounded, holds what common traffic needs, and wastes little."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from asynclane.bench.steps.shapes import SHAPES
from asynclane.models.exec.graphs import MOST_LATE
from asynclane.models.exec.pack import NO_INPUTS, OptionalInputs, Shape, pack_into, projected
from asynclane.models.exec.shapes import (
    COMMON,
    RARE,
    ROOM,
    ShapeSet,
    checked_sizes,
    covers,
    default_sizes,
    rounded,
    spacing,
    variants,
)
from asynclane.models.numerics import Numerics
from asynclane.scheduler.contract import (
    GREEDY,
    MOST_RANKS,
    Bias,
    DeviceCommitRule,
    Measure,
    Restriction,
    Row,
    RowCopy,
    Sampling,
    Selection,
    Span,
    StepPlan,
)

RULE = DeviceCommitRule(1, 0.9)
WORDS = -(-SHAPES["llada-8b"].vocab_size // 32)
LLADA = ShapeSet(SHAPES["llada-8b"], Numerics(torch.bfloat16), 64, default_sizes(4096))
BLOCKS = replace(SHAPES["sdar-8b"], block_size=16, vocab_size=SHAPES["llada-8b"].vocab_size)
SDAR = ShapeSet(BLOCKS, Numerics(torch.bfloat16), 64, default_sizes(4096))


def plan_of(*rows: Row) -> StepPlan:
    return StepPlan((), tuple(row._replace(slot=slot) for slot, row in enumerate(rows)))


def row_of(size: int, count: int, **inputs: object) -> Row:
    """A row of `size` positions, the last `count` of them projected."""
    rule = inputs.pop("rule", RULE)
    span = (Span(size - count, size, rule),) if count else ()  # type: ignore[arg-type]
    return Row(0, 0, size, size, span, **{"sampling": GREEDY, "step": 0, **inputs})  # type: ignore[arg-type]


ORDINARY = {
    "greedy": {},
    "sampled": {"sampling": Sampling(0.7, seed=3)},
    "narrowed": {"sampling": Sampling(0.7, 0.9, 3, 40)},
    "scored": {"ranks": 5},
    "only the chosen token scored": {"ranks": 0},
    "biased": {"biases": (Bias(0, 9, np.arange(300, dtype=np.int32), np.ones(300, np.float32)),)},
    "drawn order": {"rule": replace(RULE, measure=Measure.RANDOM)},
    "rule on the host": {
        "rule": replace(RULE, measure=Measure.ENTROPY),
        "ranks": MOST_RANKS,
        "host_tokens": np.zeros(40, np.int32),
    },
    "grammar": {"restriction": Restriction(10, np.zeros(WORDS, np.int32)), "host_tokens": np.zeros(40, np.int32)},
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_requests_have_graphs_alone_and_beside_others(name: str) -> None:
    row, others = row_of(40, 32, **ORDINARY[name]), [row_of(40, 32), row_of(40, 32, sampling=Sampling(0.5))]
    for plan in (plan_of(row), plan_of(*[row] * 6), plan_of(row, *others)):
        padding, needed = LLADA.fit(plan)
        assert padding.body in LLADA.bodies()
        assert padding.tail in LLADA.tails()
        assert needed == OptionalInputs.of(plan)
        assert covers(padding.shape.inputs, needed)
        pack_into(np.empty(padding.shape.words, np.int32), plan, padding.shape)
        assert LLADA.fit(plan).padding is padding


def test_rare_steps_have_no_graph_for_a_part_of_them() -> None:
    both = row_of(40, 32, ranks=3, restriction=Restriction(10, np.zeros(WORDS, np.int32)))
    assert LLADA.fit(plan_of(both)).padding.tail is None
    assert LLADA.fit(plan_of(both)).padding.body is not None
    copied = LLADA.fit(plan_of(row_of(40, 32), row_of(40, 32, copy=RowCopy(1, 1)))).padding
    assert copied.body is copied.tail is None
    assert LLADA.fit(plan_of(*[row_of(2, 1)] * 65)).padding.body is None
    large = LLADA.fit(plan_of(*[row_of(40, 40, ranks=1)] * 40)).padding
    assert large.shape.projected > RARE
    assert large.tail is None
    assert large.body is not None
    beyond = LLADA.fit(plan_of(row_of(4097, 1))).padding
    assert beyond.body is beyond.tail is None
    assert beyond.shape.tokens == rounded(4097)


def test_a_step_with_more_biases_than_graphs_have_room_for_runs_without_one() -> None:
    """A `repetition_penalty` counts each token of a prompt: together, requests may have any number of entries."""

    def penalised(entries: int) -> Row:
        tokens = np.arange(entries, dtype=np.int32)
        factors = np.full(entries, 1.5, np.float32)
        return row_of(40, 32, biases=(Bias(0, 40, tokens, np.zeros(entries, np.float32), factors),))

    for rows in ((ROOM + 1,), (ROOM,) * 3, (30_000,)):
        plan = plan_of(*map(penalised, rows))
        padding = LLADA.fit(plan).padding
        assert padding.tail is None
        assert padding.body is not None
        assert padding.shape.inputs.biases >= sum(rows)
        pack_into(np.empty(padding.shape.words, np.int32), plan, padding.shape)
    assert LLADA.fit(plan_of(penalised(ROOM))).padding.tail is not None


def test_a_step_that_only_renews_keys_has_a_body_alone() -> None:
    padding, _ = LLADA.fit(plan_of(row_of(100, 0)))
    assert padding.body is not None
    assert padding.tail is None
    assert padding.shape.projected == 0
    pack_into(np.empty(padding.shape.words, np.int32), plan_of(row_of(100, 0)), padding.shape)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("slots", [1, 64, 4096])
def test_the_set_is_bounded_and_its_parts_meet_at_one_place(shape: str, slots: int) -> None:
    found = ShapeSet(SHAPES[shape], Numerics(torch.bfloat16), slots, default_sizes(4096))
    bodies, tails = found.bodies(), found.tails()
    written = 2 if SHAPES[shape].canvas else 1.7  # steps of canvases have tokens of the host whatever their size
    assert len(set(bodies)) == len(bodies) <= written * len(default_sizes(4096))
    assert len(set(tails)) == len(tails) <= 224 + COMMON * found.selects

    kind = "sampled" if SHAPES[shape].canvas else "rule on the host"  # canvases report no probabilities in graphs
    assert_meets(found, plan_of(row_of(40, 32, **ORDINARY[kind])))


def assert_meets(shapes: ShapeSet, plan: StepPlan) -> None:
    """Both parts of a plan read its words where the whole has them, within the set's buffer."""
    whole = shapes.fit(plan).padding
    assert whole.body is not None
    assert whole.tail is not None
    for part in (whole.body, whole.tail):
        names = part.body_sections() if part.tokens else {"row_slots", "visible", *part.tail_sections()}
        assert all(places(part)[name] == places(whole.shape)[name] for name in names)
    assert whole.shape.body_words <= shapes.body_words
    assert whole.shape.words - whole.shape.body_words <= shapes.tail_words


def places(shape: Shape) -> dict[str, int]:
    """The distance of sections from the border between a body's and a tail's."""
    at, found = -shape.body_words, {}
    for name, size in shape.sections.items():
        found[name] = at
        at += size
    return found


def focused(size: int, keep: int, cached: int, **inputs: object) -> Row:
    """A row of a block of which `keep` open positions go on, and all but `cached` of those that are full."""
    whole = np.arange(size, dtype=np.int32)
    row = row_of(size, size, **inputs)
    return row._replace(selection=Selection(keep, whole[size // 4 :], whole[:cached]))


@pytest.mark.parametrize("name", ORDINARY)
@pytest.mark.parametrize("count", [1, 5, 64])
def test_steps_with_a_selection_have_shapes_for_graphs_whatever_their_requests_need(name: str, count: int) -> None:
    others = [row_of(40, 32, **ORDINARY[name]), row_of(40, 32)] if count < 64 else []
    plan = plan_of(*[focused(40, 3, 2, **ORDINARY[name])] * count, *others)
    padding, needed = SDAR.fit(plan)
    inputs = padding.shape.inputs
    assert padding.tail is None or covers(inputs, needed)
    assert (padding.tail is None) == (padding.shape.projected > RARE and not covers(SDAR._variants[1], needed))
    assert inputs.kept >= needed.kept == plan.tokens - count * 29
    assert inputs.kept_projected >= needed.kept_projected == plan.projected - count * 37
    words = np.empty(padding.shape.words, np.int32)
    pack_into(words, plan, padding.shape)
    if padding.tail is not None and padding.body is not None:
        assert_meets(SDAR, plan)
    assert SDAR.fit(plan).padding is padding


def test_a_steady_load_of_steps_with_a_selection_has_few_shapes_and_wastes_little() -> None:
    """Two of 36 layers compute what is left out."""
    rng, bodies, tails = random.Random(0), set[Shape](), set[Shape]()
    real = padded = 0
    for _ in range(2000):
        begun = [rng.random() < 0.85 for _ in range(64)]
        padding, needed = SDAR.fit(
            plan_of(*[focused(16, rng.randint(1, 4), 3) if on else row_of(32, 16) for on in begun])
        )
        assert padding.body is not None
        assert padding.tail is not None
        bodies.add(padding.body)
        tails.add(padding.tail)
        real, padded = real + needed.kept, padded + padding.shape.inputs.kept
        assert padding.shape.tokens <= 1.5 * (16 * 64 + 16 * (64 - sum(begun)))
    assert padded < 1.05 * real
    assert len(bodies) + len(tails) < MOST_LATE / 2


def test_of_steps_with_a_selection_only_the_largest_have_graphs_at_start() -> None:
    """They take all the memory that later ones need; in a set without sizes none may have a graph."""
    late = [shape for shape in (*SDAR.bodies(), *SDAR.tails()) if shape.inputs.kept or shape.inputs.kept_projected]
    assert [(shape.tokens, shape.projected) for shape in late] == [(4096, 0), (0, 4096), (0, 4096)]
    without = ShapeSet(SDAR.config, SDAR.numerics, 64, ())
    padding = without.fit(plan_of(focused(40, 3, 2))).padding
    assert padding.body is padding.tail is None
    assert not without.selects
    large = SDAR.fit(plan_of(*[focused(80, 3, 2)] * 60)).padding
    assert large.body is large.tail is None, "it has more positions than any in the set"
    copied = SDAR.fit(plan_of(focused(40, 3, 2), row_of(40, 32, copy=RowCopy(1, 1)))).padding
    assert copied.body is copied.tail is None


def test_a_tail_of_a_step_takes_what_it_has_room_for() -> None:
    table = variants(WORDS)
    assert all(covers(room, NO_INPUTS) for room in table)
    assert not covers(NO_INPUTS, OptionalInputs(sampled=True))
    assert not covers(table[1], OptionalInputs(measured=True))
    assert not covers(table[-1], OptionalInputs(ranks=0))
    assert not covers(table[-1], OptionalInputs(restricted=1, mask_words=WORDS - 1))
    assert covers(table[-1], OptionalInputs(restricted=64, mask_words=WORDS, biases=2048, sampled=True))


def test_sizes_lie_a_sixteenth_apart_where_a_steps_time_is_not_flat() -> None:
    assert [spacing(tokens) for tokens in (1, 16, 256, 257, 512, 1024, 1025, 4096)] == [
        16,
        16,
        16,
        32,
        32,
        64,
        128,
        256,
    ]
    sizes = default_sizes(4096)
    assert len(sizes) == 48
    assert (sizes[0], sizes[-1], default_sizes(1000)[-1], default_sizes(1)) == (16, 4096, 1024, (16,))
    assert all(rounded(size) == size for size in sizes)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((), "each 1 at least"),
        ((0, 16), "each 1 at least"),
        ((16, 5000), "no step has 5000 positions: --max-step-tokens is 4096"),
        (tuple(range(1, 400)), "399 sizes take long"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(sizes: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checked_sizes(sizes, 4096)


def test_sizes_are_put_in_order() -> None:
    assert checked_sizes((64, 16, 64), 4096) == (16, 64)


def test_padding_wastes_little_of_mixed_traffic() -> None:
    """Denoising rows with prompts among them, from 1 to 64 requests. A projected position costs a tenth of another."""
    rng = random.Random(0)
    real = padded = 0.0
    for _ in range(300):
        rows = [row_of(rng.randint(24, 64), rng.randint(4, 24)) for _ in range(rng.randint(1, 64))]
        rows += [row_of(rng.randint(16, 1200), 0) for _ in range(rng.choice((0, 0, 0, 1)))]
        plan = plan_of(*rows[:64])
        if plan.tokens > 4096:
            continue
        shape = LLADA.fit(plan).padding.shape
        real += max(plan.tokens, 128) + projected(plan) / 10  # below, a step's time is flat
        padded += max(shape.tokens, 128) + shape.projected / 10
    assert padded / real < 1.05
