"""AsyncLane on the embedded model: its switches do what the paper says, and its calls add up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asynclane.bench.load.problems import problems
from asynclane.bench.quality.checks import right
from asynclane.models.exec.runner import Runner
from asynclane.scheduler.contract import StepPlan
from asynclane.scheduler.decoding.lane_tree import Role
from asynclane.scheduler.decoding.params import BLOCK_LENGTHS, ParamError
from asynclane.scheduler.decoding.resolve import resolve
from asynclane.scheduler.decoding.vocabulary import END, Vocabulary
from asynclane.scheduler.lane_events import LaneEvents
from asynclane.scheduler.request import Request
from asynclane.scheduler.scheduler import Scheduler
from asynclane.scheduler.sequence import Sequence
from asynclane.scheduler.step_cost import Budget, StepCost
from asynclane.server.text.tokenizer import Tokenizer

from ..support.driver import LIMITS, MODEL, Ask, run
from ..support.fakes import add

PROBLEMS = problems(21, 8)
LENGTH = 128


def answers(
    runner: Runner, vocabulary: Vocabulary, decoder: str = "asynclane", count: int = len(PROBLEMS), **knobs: Any
) -> list[Sequence]:
    text = Tokenizer(MODEL)
    prompts = [text.encode_chat([{"role": "user", "content": problem.prompt}]) for problem in PROBLEMS[:count]]
    return run(runner, vocabulary, [Ask(prompt, LENGTH, decoder, knobs) for prompt in prompts])


def canvases(sequences: list[Sequence]) -> list[list[int]]:
    return [sequence.canvas.tolist() for sequence in sequences]


def watched(
    runner: Runner, vocabulary: Vocabulary, count: int = len(PROBLEMS), **knobs: Any
) -> list[tuple[Sequence, list[LaneEvents]]]:
    """Each answer with what every call did to its lanes."""
    text, seen = Tokenizer(MODEL), []
    decoder = resolve("asynclane", knobs, LENGTH)
    for number, problem in enumerate(PROBLEMS[:count]):
        prompt = np.array(text.encode_chat([{"role": "user", "content": problem.prompt}]), np.int32)
        scheduler = Scheduler(LIMITS, vocabulary)
        sequence = add(scheduler, Request(number, prompt, LENGTH, decoder, watched=True))
        frames: list[LaneEvents] = []
        while (plan := scheduler.plan()) is not None:
            (update,) = scheduler.commit(runner.execute(plan))
            assert update.lane_events is not None
            frames.append(update.lane_events)
        seen.append((sequence, frames))
    return seen


@pytest.mark.parametrize("rule", [{"threshold": 0.9}, {"factor": 1.0}, {"steps": 32}])
def test_without_forks_with_the_whole_canvas_and_a_refresh_per_block_it_is_fast_dllm(
    rule: dict[str, object], runner: Runner, vocabulary: Vocabulary
) -> None:
    plain = {"cache": "prefix", "early_stop": False, **rule}
    off = {"draft_threshold": "off", "end_threshold": "off", "later_threshold": "off"}
    ours = answers(runner, vocabulary, count=3, max_lanes=1, lookahead="canvas", block_length=32, **off, **plain)
    theirs = answers(runner, vocabulary, "fast-dllm", count=3, **plain)
    assert canvases(ours) == canvases(theirs)
    assert [s.steps for s in ours] == [s.steps for s in theirs]
    assert [s.computed_tokens for s in ours] == [s.computed_tokens for s in theirs]


@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"refresh_every": 1},
        {"refresh_every": 3, "refresh_on": "steps"},
        {"refresh_every": 1, "refresh_on": "forks"},
        {"reuse": False, "refresh_every": 1},
        {"reuse": False, "refresh_every": 0},
        {"siblings": "isolated", "refresh_every": 2},
    ],
    ids=str,
)
def test_calls_are_one_and_groups_and_refreshes_less_what_is_reused(
    knobs: dict[str, object], runner: Runner, vocabulary: Vocabulary
) -> None:
    """The paper's identity. Packed rows make one group of all that a request updates in a step."""
    reuse = knobs.get("reuse") is not False
    for sequence, frames in watched(runner, vocabulary, count=4, **knobs):
        groups = sum(bool(frame.lanes) for frame in frames)
        full = [frame for frame in frames if frame.refresh or frame.step == 0]
        reused = sum(bool(frame.lanes) for frame in full)
        assert len(full) == 1 + sequence.refreshes
        assert sequence.steps == len(frames) == 1 + groups + sequence.refreshes - reused
        assert reused == (len(full) if reuse else 0)
        assert sequence.reused_refreshes == (sequence.refreshes if reuse else 0)
        assert sequence.refreshes > 0 or knobs.get("refresh_every") != 1 or sequence.steps < 4


def test_reuse_saves_calls_and_answers_as_well(runner: Runner, vocabulary: Vocabulary) -> None:
    with_reuse, without = (answers(runner, vocabulary, refresh_every=2, reuse=reuse) for reuse in (True, False))
    assert sum(s.steps for s in with_reuse) + len(PROBLEMS) <= sum(s.steps for s in without)


@pytest.mark.parametrize("siblings", ["live", "isolated", "coupled", "commit"])
def test_every_kind_of_sibling_answers_most_problems(siblings: str, runner: Runner, vocabulary: Vocabulary) -> None:
    text, sequences = Tokenizer(MODEL), answers(runner, vocabulary, siblings=siblings)
    good = [
        right(p, text.decode(s.canvas[: min(s.end_at, LENGTH)].tolist()))
        for p, s in zip(PROBLEMS, sequences, strict=True)
    ]
    assert sum(good) >= 5
    assert sum(s.tree.forks for s in sequences) >= 5


class Watch:
    """An executor that keeps the plans which passed through it."""

    def __init__(self, runner: Runner) -> None:
        self.runner, self.plans = runner, list[StepPlan]()

    def execute(self, plan: StepPlan) -> Any:
        self.plans.append(plan)
        return self.runner.execute(plan)


def test_isolated_siblings_run_in_slots_of_their_own_on_shared_pages(runner: Runner, vocabulary: Vocabulary) -> None:
    text = Tokenizer(MODEL)
    prompt = text.encode_chat([{"role": "user", "content": PROBLEMS[1].prompt}])
    watch = Watch(runner)
    run(watch, vocabulary, [Ask(prompt, LENGTH, knobs={"siblings": "isolated", "threshold": 0.99})])
    assert max(len(plan.rows) for plan in watch.plans) > 1
    for plan in watch.plans:
        assert len({row.slot for row in plan.rows}) == len(plan.rows)
    main, *branches = {p.slot: p.pages for plan in watch.plans for p in plan.placements}.values()
    assert branches
    for pages in branches:
        shared = sum(own == other for own, other in zip(pages, main, strict=False))
        assert 0 < shared < len(pages)
        assert pages[:shared] == main[:shared]
        assert not set(pages[shared:]) & set(main)


def test_an_isolated_lane_does_not_see_what_its_sibling_commits(runner: Runner, vocabulary: Vocabulary) -> None:
    """Otherwise the ablation would measure nothing: answers and costs differ from those of live siblings."""
    live, isolated = (answers(runner, vocabulary, siblings=kind, threshold=0.99) for kind in ("live", "isolated"))
    assert canvases(live) != canvases(isolated)
    assert sum(s.computed_tokens for s in live) < sum(s.computed_tokens for s in isolated)


def test_only_generate_lanes_end_an_answer_never_drafts_or_refine_lanes(runner: Runner, vocabulary: Vocabulary) -> None:
    """With drafts at any confidence much is written ahead of the lanes, and nothing of it ends anything."""
    drafts = 0
    for _, frames in watched(runner, vocabulary, draft_threshold=0.3, end_threshold="off"):
        for frame in frames:
            for position, token in zip(frame.positions.tolist(), frame.tokens.tolist(), strict=True):
                roles = [lane.role for lane in frame.lanes if lane.start <= position < lane.end]
                drafts += not roles
                if vocabulary.classes[token] & END:
                    assert roles == [Role.GENERATE]
    assert drafts > 50


def test_a_foreseen_end_shortens_the_look_ahead(runner: Runner, vocabulary: Vocabulary) -> None:
    near, far = (answers(runner, vocabulary, end_threshold=threshold) for threshold in (0.9, "off"))
    assert sum(s.computed_tokens for s in near) < 0.98 * sum(s.computed_tokens for s in far)


def test_blocks_may_follow_the_load(runner: Runner, vocabulary: Vocabulary) -> None:
    """A budget that knows nothing yet starts with long ones; without a budget nobody can ask for it."""
    prompt = np.array(Tokenizer(MODEL).encode_chat([{"role": "user", "content": PROBLEMS[0].prompt}]), np.int32)
    request = Request(0, prompt, LENGTH, resolve("asynclane", {"block_length": "auto"}, LENGTH))
    with pytest.raises(ParamError, match="has measured its steps"):
        Scheduler(LIMITS, vocabulary).add(request)
    budget = Budget(StepCost([0, 10_000], [1.0, 1.0]))
    scheduler = Scheduler(LIMITS, vocabulary, budget)
    sequence = add(scheduler, request)
    first = 0
    while (plan := scheduler.plan()) is not None:
        first = first or sequence.tree.live[0].end
        scheduler.commit(runner.execute(plan))
    assert budget.block_length(1) == max(BLOCK_LENGTHS)
    assert first == max(BLOCK_LENGTHS)


def test_settling_costs_positions_and_saves_answers(runner: Runner, vocabulary: Vocabulary) -> None:
    settled, hasty = (answers(runner, vocabulary, settle=settle, refresh_every=0) for settle in (True, False))
    per_call = [sum(s.computed_tokens for s in some) / sum(s.steps for s in some) for some in (settled, hasty)]
    assert per_call[1] < per_call[0]
    assert canvases(settled) != canvases(hasty)
