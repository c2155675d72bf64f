"""The runner on a GPU, as far as a test needs none: which plans are captured, which errors mean a lost device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from asynclane.models.exec.graphs import StepGraphs
from asynclane.models.numerics import Numerics
from asynclane.scheduler import DeviceLost
from asynclane.scheduler.contract import GREEDY, DeviceCommitRule, Row, Span, StepPlan

from ..support.fakes import raising
from ..support.small_network import CONFIG, small_runner

PLAN = StepPlan((), (Row(0, 0, 20, 20, (Span(0, 20, DeviceCommitRule(1, 0.9)),), GREEDY, 0),))
ERROR = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")


class BrokenGraphs:
    """Raises at the start of a step, or at its end."""

    def __init__(self, at_start: bool) -> None:
        self._at_start = at_start

    def launch(self, plan: StepPlan) -> Callable[..., Any]:
        if self._at_start:
            raise ERROR
        return raising(ERROR)


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


def test_a_plan_is_captured_if_one_of_its_shape_was() -> None:
    graphs = StepGraphs(lambda batch: torch.zeros(0), CONFIG, Numerics(torch.float32), slots=2)
    (row,) = PLAN.rows
    near, far = (StepPlan((), (row._replace(end=end, visible=end),)) for end in (21, 40))
    assert not graphs.captured(PLAN)
    graphs._captured[graphs.shape_for(PLAN)] = None  # type: ignore[assignment]
    assert [graphs.captured(plan) for plan in (PLAN, near, far, near, PLAN)] == [True, True, False, True, True]


def test_on_a_cpu_nothing_is_captured_so_nothing_waits_for_it() -> None:
    assert small_runner().captured(PLAN)
