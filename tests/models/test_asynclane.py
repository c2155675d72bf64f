"""AsyncLane on the embedded model: its switches do what the paper says, and its forwards add up."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from asynclane.bench.load.problems import problems
from asynclane.bench.quality.checks import right
from asynclane.scheduler import Budget, ParamError, Scheduler, StepCost, Vocabulary
from asynclane.scheduler.decoding.lane_tree import Role
from asynclane.scheduler.decoding.params import SHAPES, LaneShape
from asynclane.scheduler.decoding.vocabulary import END

from ..support.cases import TEXT, chat, network
from ..support.driver import LIMITS, Answer, Spec, serve
from ..support.golden import WHOLE
from ..support.scale import ALL, LONG, part

PROBLEMS = problems(21, 5)
PROMPTS = [chat(problem.prompt) for problem in PROBLEMS]
LENGTH = 128


def answers(decoder: str = "asynclane", count: int = 2, length: int = LENGTH, **params: Any) -> list[Answer]:
    """The answers to the first problems. Each set of parameters is run once."""
    return _answers(decoder, count, length, tuple(params.items()))


@cache
def _answers(decoder: str, count: int, length: int, params: tuple[tuple[str, object], ...]) -> list[Answer]:
    watched = decoder == "asynclane"
    specs = [Spec(prompt, length, decoder, dict(params), watched=watched) for prompt in PROMPTS[:count]]
    return network("tiny-llada").run(specs)


def canvases(answers: list[Answer]) -> list[list[int]]:
    return [answer.canvas.tolist() for answer in answers]


@pytest.mark.parametrize("rule", [{"threshold": 0.9}, {"factor": 1.0}], ids=str)
def test_without_forks_with_the_whole_canvas_and_a_refresh_per_block_it_is_fast_dllm(rule: dict[str, object]) -> None:
    plain = {"cache": "prefix", **WHOLE, **rule}
    off = {"draft_threshold": "off", "end_threshold": "off", "later_threshold": "off"}
    ours = answers(count=1, length=64, max_lanes=1, lookahead="canvas", block_length=32, **off, **plain)
    theirs = answers("fast-dllm", count=1, length=64, **plain)
    assert canvases(ours) == canvases(theirs)
    assert [(a.steps, a.computed_tokens) for a in ours] == [(a.steps, a.computed_tokens) for a in theirs]


@pytest.mark.parametrize(
    "params",
    [
        {},
        pytest.param({"refresh_every": 3, "refresh_on": "steps"}, marks=LONG),
        {"refresh_every": 1, "refresh_on": "forks"},
        pytest.param({"reuse": False, "refresh_every": 1}, marks=LONG),
        {"siblings": "isolated", "refresh_every": 2},
    ],
    ids=str,
)
def test_forwards_are_one_and_groups_and_refreshes_less_what_is_reused(params: dict[str, object]) -> None:
    """The paper's identity. Packed rows make one group of all that a request updates in a step."""
    reuse = params.get("reuse") is not False
    for answer in answers(**params):
        groups = sum(bool(event.lanes) for event in answer.events)
        full = [event for event in answer.events if event.refresh or event.step == 0]
        reused = sum(bool(event.lanes) for event in full)
        assert len(full) == 1 + answer.refreshes
        assert answer.steps == len(answer.events) == 1 + groups + answer.refreshes - reused
        assert reused == (len(full) if reuse else 0)
        assert answer.reused_refreshes == (answer.refreshes if reuse else 0)
        assert answer.refreshes > 0 or params.get("refresh_every") != 1 or answer.steps < 4


def test_reuse_saves_forwards_and_answers_as_well() -> None:
    with_reuse, without = (answers(refresh_every=2, reuse=reuse) for reuse in (True, False))
    assert sum(a.steps for a in with_reuse) + 2 <= sum(a.steps for a in without)


@pytest.mark.parametrize("siblings", part(["live", "isolated", "coupled", "commit"], 2))
def test_every_kind_of_sibling_answers_most_problems(siblings: str) -> None:
    some = PROBLEMS if ALL else PROBLEMS[:3]
    found = answers(count=len(some), siblings=siblings)
    good = [right(problem, TEXT.decode(answer.text)) for problem, answer in zip(some, found, strict=True)]
    assert sum(good) > len(some) / 2
    assert sum(answer.forks for answer in found) >= 3


def test_an_isolated_lane_does_not_see_what_its_sibling_commits() -> None:
    """Otherwise the ablation would measure nothing: answers and costs differ from those of live siblings."""
    live, isolated = (answers(siblings=kind, threshold=0.99) for kind in ("live", "isolated"))
    assert canvases(live) != canvases(isolated)
    assert sum(a.computed_tokens for a in live) < sum(a.computed_tokens for a in isolated)


def test_only_generate_lanes_end_an_answer_never_drafts_or_refine_lanes(vocabulary: Vocabulary) -> None:
    """With drafts at any confidence much is written ahead of the lanes, and nothing of it ends anything."""
    drafts = 0
    for answer in answers(draft_threshold=0.3, end_threshold="off"):
        for event in answer.events:
            for position, token in zip(event.positions.tolist(), event.tokens.tolist(), strict=True):
                roles = [lane.role for lane in event.lanes if lane.start <= position < lane.end]
                drafts += not roles
                if vocabulary.classes[token] & END:
                    assert roles == [Role.GENERATE]
    assert drafts > 10


def test_a_predicted_end_shortens_the_look_ahead() -> None:
    near, far = (answers(end_threshold=threshold) for threshold in (0.9, "off"))
    assert sum(a.computed_tokens for a in near) < sum(a.computed_tokens for a in far)


class EachInTurn(Budget):
    """Gives requests all shapes, one after the other."""

    def _choose(self, requests: int) -> LaneShape:
        return SHAPES[sum(self.running.values()) % len(SHAPES)]


def test_an_answer_that_follows_the_load_is_that_of_the_shape_it_was_given_alone_or_batched() -> None:
    net, budget = network("tiny-llada"), EachInTurn(StepCost([0, 10_000], [1.0, 1.0]))
    auto = [Spec(prompt, 64 if ALL else 40, params={"block_length": "auto"}) for prompt in PROMPTS[: len(SHAPES)]]
    scheduler = Scheduler(LIMITS, net.vocabulary, budget)
    together = serve(scheduler, net.runner, auto)
    scheduler.check_integrity()
    assert not any(budget.running.values())
    assert [means.answers for means in budget.means.values()] == [1.0] * len(SHAPES)
    fixed = [replace(spec, params=shape._asdict()) for spec, shape in zip(auto, SHAPES, strict=True)]
    alone = [answer for spec in fixed for answer in net.run([spec])]
    assert canvases(together) == canvases(alone)
    assert [(a.steps, a.computed_tokens) for a in together] == [(a.steps, a.computed_tokens) for a in alone]
    assert len({a.computed_tokens for a in alone}) == len(SHAPES)
    for answer in together:
        assert net.vocabulary.mask_id not in answer.streamed


def test_a_budget_is_needed_and_learns_nothing_from_a_request_that_was_ended(vocabulary: Vocabulary) -> None:
    budget = Budget(StepCost([0, 10_000], [1.0, 1.0]))
    scheduler = Scheduler(LIMITS, vocabulary, budget)
    request = Spec(PROMPTS[0], LENGTH, params={"block_length": "auto"}).request(0, scheduler.pattern)
    with pytest.raises(ParamError, match="has measured its steps"):
        Scheduler(LIMITS, vocabulary).add(request)
    net = network("tiny-llada")
    serve(scheduler, net.runner, [Spec(PROMPTS[0], LENGTH, params={"block_length": "auto"})], leave_after={0: 1})
    assert not any(budget.running.values())
    assert not any(means.answers for means in budget.means.values())


def test_settling_costs_positions_and_changes_answers() -> None:
    settled, hasty = (answers(settle=settle, refresh_every=0) for settle in (True, False))
    per_step = [sum(a.computed_tokens for a in some) / sum(a.steps for a in some) for some in (settled, hasty)]
    assert per_step[1] < per_step[0]
    assert canvases(settled) != canvases(hasty)
