"""The runner on a GPU, as far as a test needs none: which errors mean a lost device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from asynclane.models.exec.pair import Ids, Pair
from asynclane.models.exec.runner import StepUnderWay
from asynclane.models.exec.shapes import ShapeSet
from asynclane.models.numerics import Numerics
from asynclane.scheduler import DeviceLost
from asynclane.scheduler.contract import GREEDY, DeviceCommitRule, Placement, Row, Span, StepPlan

from ..support.fakes import raising
from ..support.small_network import CONFIG, small_runner

PLAN = StepPlan((), (Row(0, 0, 20, 20, (Span(0, 20, DeviceCommitRule(1, 0.9)),), GREEDY, 0),))
ERROR = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")


class BrokenGraphs:
    """Raises at the start of a step, or at its end."""

    fit = ShapeSet(CONFIG, Numerics(torch.float32), 2, ()).fit(PLAN)

    def __init__(self, at_start: bool) -> None:
        self._at_start = at_start

    def launch(self, plan: StepPlan) -> BrokenGraphs:
        if self._at_start:
            raise ERROR
        return self

    done = collect = raising(ERROR)


@pytest.mark.parametrize("at_start", [True, False])
@pytest.mark.parametrize("lost", [True, False])
def test_a_device_is_lost_if_it_fails_after_the_error_too(
    monkeypatch: pytest.MonkeyPatch, at_start: bool, lost: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", raising(ERROR) if lost else lambda: None)
    runner = small_runner()
    monkeypatch.setattr(runner, "_graphs", BrokenGraphs(at_start))
    with pytest.raises(DeviceLost if lost else torch.AcceleratorError, match="illegal memory access") as caught:
        runner.launch(PLAN)()
    assert ERROR in (caught.value, caught.value.__cause__)


@pytest.mark.parametrize("lost", [True, False])
def test_a_step_whose_end_cannot_be_seen_is_done(monkeypatch: pytest.MonkeyPatch, lost: bool) -> None:
    """Whoever takes its result gets the error."""
    monkeypatch.setattr(torch.cuda, "synchronize", raising(ERROR) if lost else lambda: None)
    step = StepUnderWay(BrokenGraphs(at_start=False), 1)  # type: ignore[arg-type]
    assert step.done()
    with pytest.raises(DeviceLost if lost else torch.AcceleratorError):
        step()


@pytest.mark.parametrize("lost", [True, False])
def test_a_device_is_lost_if_it_fails_where_a_request_is_placed_for_another_network(
    monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    """The served network's part of a step that drafts is the placement alone."""
    monkeypatch.setattr(torch.cuda, "synchronize", raising(ERROR) if lost else lambda: None)
    runner, drafter = small_runner(), small_runner()
    monkeypatch.setattr(runner, "_graphs", BrokenGraphs(at_start=False))
    monkeypatch.setattr(runner, "place", raising(ERROR))
    tokens = np.zeros(20, np.int32)
    row = PLAN.rows[0]._replace(host_tokens=tokens, drafter=True)
    plan = StepPlan((Placement(0, tokens, (0,)),), (row,))
    with pytest.raises(DeviceLost if lost else torch.AcceleratorError, match="illegal memory access"):
        Pair(runner, drafter, Ids(0, 0, 9), on_gpu=True).launch(plan)()


def test_a_plan_of_placements_alone_has_a_result_without_positions() -> None:
    result = small_runner().execute(StepPlan((Placement(0, np.zeros(4, np.int32), (0,)),), ()))
    assert (len(result.tokens), len(result.proposals), len(result.confidence), result.device_s) == (0, 0, 0, 0.0)
