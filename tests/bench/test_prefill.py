"""The pauses of streams are simulated with the real scheduler: a limit on prompt positions bounds them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from asynclane.bench.steps.prefill import CURVE, main, read_curve

from ..support.scale import LONG


def test_a_limit_bounds_the_pauses_and_costs_few_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--limits", "0,512", "--streams", "16", "--seconds", "4"]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    whole, chunked = figures["limits"]
    assert (whole["limit"], chunked["limit"]) == (0, 512)
    assert chunked["gap_p99.9"] < 40 < whole["gap_p99.9"]
    assert chunked["tokens_per_s"] > 0.8 * whole["tokens_per_s"] > 0


@pytest.mark.parametrize("streams", [pytest.param(1, marks=LONG), 32])
def test_a_long_prompt_makes_tokens_come_less_than_twice_as_late(
    streams: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--limits", "auto,512", "--streams", str(streams), "--seconds", "4", "--long", "16000"]) == 0
    auto, fixed = json.loads(capsys.readouterr().out.splitlines()[-1])["limits"]
    assert auto["over"] < 2 < fixed["over"]
    assert auto["long_first"] < 2 * fixed["long_first"]


def test_the_curve_is_the_measured_one() -> None:
    assert read_curve(CURVE)(256) == pytest.approx(8.243e-3)
    with pytest.raises(ValueError, match=r"pyproject\.toml is no file of steps\.offline"):
        read_curve(Path("pyproject.toml"))


@pytest.mark.parametrize("limits", ["x", "0,3"])
def test_limits_below_a_block_are_refused(limits: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--limits", limits])
    assert repr(limits) in capsys.readouterr().err
