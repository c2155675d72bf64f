"""The host's time for a step is measured with lanes that live, whoever decides what commits."""

from __future__ import annotations

import json

import pytest

from asynclane.bench.steps.host import main


@pytest.mark.parametrize("rule", [None, "localleap"])
def test_plan_and_commit_are_timed_at_the_lanes_that_were_asked_for(
    rule: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--lanes", "16", "--steps", "5", *(["--rule", rule] if rule else [])]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["rule"] == rule
    assert figures["lanes"] >= 16
    assert 0 < figures["plan_ms"] < figures["host_ms"]
    assert ("rule_ms" in figures) == (rule is not None)
